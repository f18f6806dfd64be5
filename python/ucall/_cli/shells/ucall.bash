# Completes the command ucall in bash: source <(ucall --completion bash)
_ucall() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    elif [[ ${#COMPREPLY[@]} -eq 0 && $2 == @* ]]; then
        # A file after name=@; without the @, readline completes it by itself.
        mapfile -t COMPREPLY < <(compgen -P @ -f -- "${2#@}")
        compopt -o filenames
    fi
}
complete -o default -F _ucall ucall
