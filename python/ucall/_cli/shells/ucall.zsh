#compdef ucall
# Completes the command ucall in zsh: source <(ucall --completion zsh)
_ucall() {
    local line
    local -a values shown ending
    for line in "${(@f)$("${words[1]}" __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        values+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    if (( $#values )); then
        [[ ${values[1]} == *= ]] && ending=(-S '')
        compadd -l -d shown "${ending[@]}" -a values
    else
        compset -P '*='
        compset -P '@'
        _files
    fi
}
(( $+functions[compdef] )) && compdef _ucall ucall
