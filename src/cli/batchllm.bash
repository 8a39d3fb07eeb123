# bash completion for batchllm. Made by scripts/make_manual.py from the program's --help.
_batchllm() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options=""
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "run plan inspect tokenize --help --version" -- "$current")
        return
    fi
    case $before in
        --grammar|--input|--json-schema|--output|--plan|--previous|--report|--save-plan|--stats|--template-file|--timeline|-i|-o) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
        --expected-tokens|--kv-memory|--max-line-bytes|--max-request-tokens|--max-requests|--step-tokens|--window-rows|--window-tokens) return ;;
        --dimensions|--groups|--max-tokens|--min-tokens|--n|--threads|--top-k) return ;;
        --enlarge) mapfile -t COMPREPLY < <(compgen -W "none optimal paper" -- "$current"); return ;;
        --levels) mapfile -t COMPREPLY < <(compgen -W "auto many one" -- "$current"); return ;;
        --model|-m) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;; # or a tokenizer.json
        --backend) mapfile -t COMPREPLY < <(compgen -W "auto cpu cuda sim" -- "$current"); return ;;
        --backend-options|--bad-word|--choices|--devices|--start-after|--stop|--system|--template) return ;;
        --compute-type) mapfile -t COMPREPLY < <(compgen -W "auto bf16 f16 f32" -- "$current"); return ;;
        --quantize) mapfile -t COMPREPLY < <(compgen -W "none stored fp8" -- "$current"); return ;;
        --kv-type) mapfile -t COMPREPLY < <(compgen -W "auto fp8" -- "$current"); return ;;
        --device) mapfile -t COMPREPLY < <(compgen -W "h200 h100 here" -- "$current"); return ;;
        --order) mapfile -t COMPREPLY < <(compgen -W "arrival decode-first" -- "$current"); return ;;
        --seed) return ;;
        --progress) mapfile -t COMPREPLY < <(compgen -W "auto bar lines json none" -- "$current"); return ;;
        --log) mapfile -t COMPREPLY < <(compgen -W "debug error info warning" -- "$current"); return ;;
        --fields) mapfile -t COMPREPLY < <(compgen -W "given reorder" -- "$current"); return ;;
        --frequency-penalty|--min-p|--presence-penalty|--repetition-penalty|--temperature|--top-p) return ;;
        --stop-token) return ;;
        --logprobs|--prompt-logprobs) return ;;
        --task) mapfile -t COMPREPLY < <(compgen -W "classify embed generate" -- "$current"); return ;;
        --pooling) mapfile -t COMPREPLY < <(compgen -W "first last mean" -- "$current"); return ;;
        --regex) return ;;
    esac
    case ${COMP_WORDS[1]} in
        run) options="--help --input --ignore-unknown-keys --max-line-bytes --threads --enlarge --no-sharing --levels --output --model --resume --force --backend --backend-options --devices --compute-type --quantize --kv-type --kv-memory --step-tokens --max-request-tokens --max-requests --reproducible --device --expected-tokens --order --seed --window-tokens --window-rows --plan --save-plan --timeline --stats --report --progress --log --template --template-file --fields --chat --system --max-tokens --temperature --top-p --min-p --top-k --repetition-penalty --presence-penalty --frequency-penalty --n --stop --stop-token --ignore-eos --logprobs --prompt-logprobs --min-tokens --bad-word --no-special --no-parse-special --task --pooling --normalize --no-normalize --dimensions --start-after --flexible-whitespace --any-member-order --any-numbers --loose-schema --json-schema --regex --grammar --choices" ;;
        plan) options="--help --input --ignore-unknown-keys --max-line-bytes --threads --enlarge --no-sharing --levels --output --model --previous --backend --backend-options --devices --compute-type --quantize --kv-type --kv-memory --step-tokens --max-request-tokens --max-requests --reproducible --device --expected-tokens --self-contained --stats --report --max-tokens --no-special --no-parse-special --template --template-file --fields --chat --system" ;;
        inspect) options="--help --json --groups --report --device --expected-tokens --max-tokens --model" ;;
        tokenize) options="--help --model --no-special --no-parse-special --decode --keep-special --threads --max-line-bytes" ;;
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _batchllm batchllm
