# For a machine with a GPU that is lent for minutes, sourced in every call there, in the tree that was sent: . benchmarks/lent.sh
# What is begun in the background outlives the call, runs from a copy of the tree, and stops with a checkpoint before the machine goes.
export LENT=${LENT:-$HOME/lent}
export PYTHONPATH=$LENT/tree/src PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=$LENT/triton AUTODUAL_DATA=$LENT/data

begin() {  # begin SECONDS: notes by when campaigns stop, copies the tree, and unpacks what is unfinished
    mkdir -p "$LENT/logs" "$LENT/tree" "$LENT/mps"
    echo $(($(date +%s) + $1)) > "$LENT/until"
    cp -r src configs benchmarks tests results pyproject.toml "$LENT/tree/"
    [ ! -e results/unfinished-1.tar ] || python3 -m autodual reproduce unpack results/unfinished-*.tar --results "$LENT/tree/results" --work "$LENT/work"
}

background() {  # background NAME COMMAND ...: its output is in $LENT/logs/NAME.log
    (cd "$LENT/tree" && setsid nohup "${@:2}" > "$LENT/logs/$1.log" 2>&1 < /dev/null &)
}

campaign() {  # campaign NAME ROW ... [--recipe best] [--side-by-side N]: rows one after the other, in a process of their own; MPS for all
    local until; until=$(cat "$LENT/until")
    (
        export CUDA_MPS_PIPE_DIRECTORY=$LENT/mps CUDA_MPS_LOG_DIRECTORY=$LENT/mps
        pgrep -f 'mps-contro[l] -d' > /dev/null || nvidia-cuda-mps-control -d
        background "$1" python3 -m autodual reproduce run "${@:2}" --results "$LENT/tree/results" --work "$LENT/work" --until "$until"
    )
}

on_cores() {  # on_cores NAME ROW [--recipe best]: evaluates a trained row on the machine's cores, so that the GPU trains meanwhile
    background "$1" python3 -m torch.distributed.run --standalone --nproc-per-node $(($(nproc) - 4)) -m autodual reproduce run "${@:2}" \
        --results "$LENT/tree/results" --work "$LENT/work" --until "$(cat "$LENT/until")" --device cpu
}

beside() {  # beside NAME COMMAND ...: any other command in the background, on the GPU that campaigns share
    (
        export CUDA_MPS_PIPE_DIRECTORY=$LENT/mps CUDA_MPS_LOG_DIRECTORY=$LENT/mps
        background "$@"
    )
}

watch_for() {  # watch_for SECONDS [OUT]: waits, shows how far everything is, and brings back what there is by then, unfinished rows too
    sleep "$1"
    for log in "$LENT"/logs/*.log; do echo "== $log" && tail -c 400 "$log" | tr '\r' '\n' | tail -n 2; done
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
    echo "$(($(cat "$LENT/until") - $(date +%s))) seconds are left"
    [ -z "${2:-}" ] || pack_into "$2"
}

pack_into() {  # pack_into OUT: up to three times, since a campaign that goes on may remove a checkpoint while it is read
    for _ in 1 2 3; do
        rm -f "$1"/back-*.tar
        python3 -m autodual reproduce pack "$1/back.tar" --most-mib 60 --results "$LENT/tree/results" --work "$LENT/work" && return
    done
}

finish() {  # finish OUT: asks all campaigns to stop, and packs what they have done
    pkill -TERM -f 'autodual reproduce [r]un'
    while pgrep -f 'autodual reproduce [r]un' > /dev/null; do sleep 1; done
    pack_into "$1"
}
