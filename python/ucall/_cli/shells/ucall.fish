# Completes the command ucall in fish: ucall --completion fish | source
function __ucall_complete
    set -l token (commandline -ct)
    set -l words (commandline -opc) "$token"
    set -l found ($words[1] __complete fish $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
        return
    end
    set -l prefix (string match -r -- '^[^=]*=@?' $token)
    for path in (__fish_complete_path (string replace -r -- '^[^=]*=@?' '' $token))
        echo $prefix$path
    end
end
complete -c ucall -f -a '(__ucall_complete)'
