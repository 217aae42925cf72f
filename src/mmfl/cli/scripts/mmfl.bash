# Completion of mmfl for bash.
_mmfl_completion() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word replies
    replies=($(_MMFL_COMPLETE=complete_lines _MMFL_LINE=$line "$1" 2>/dev/null))
    replies=("${replies[@]%%$'\t'*}")
    # Bash ends words at "=" and ":" too; it wants to know what follows those.
    word=${line##*[[:space:]]}
    COMPREPLY=("${replies[@]#"${word%"$2"}"}")
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace
    return 0
}
complete -o default -F _mmfl_completion mmfl
