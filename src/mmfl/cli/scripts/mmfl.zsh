#compdef mmfl
# Completion of mmfl for zsh.
_mmfl_completion() {
    local line value
    local -a open closed
    while IFS= read -r line; do
        value=${line%%$'\t'*}
        line=${${value//:/\\:}}${${line#"$value"}/$'\t'/:}
        case $value in
            '') ;;
            *[=./]) open+=("$line") ;;
            *) closed+=("$line") ;;
        esac
    done < <(_MMFL_COMPLETE=complete_lines _MMFL_LINE="${words[1,CURRENT]}" "${words[1]}" 2>/dev/null)
    (( $#open )) && _describe mmfl open -S ''
    (( $#closed )) && _describe mmfl closed
    (( $#open + $#closed )) || _files
}
compdef _mmfl_completion mmfl
[[ ${zsh_eval_context[-1]} == loadautofunc ]] && _mmfl_completion "$@"
