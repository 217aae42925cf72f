# Completion of mmfl for fish.
function __mmfl_completion
    set -l found (env _MMFL_COMPLETE=complete_lines _MMFL_LINE=(commandline -cp) mmfl 2>/dev/null)
    if test -n "$found"
        string join \n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command mmfl --no-files --arguments "(__mmfl_completion)"
