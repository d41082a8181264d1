#!/bin/bash
# The whole run on one GPU: text, data, training, figures.  Everything that is kept lands in $OUT.
#   device.sh WORK TEXT_SECONDS TRAIN_SECONDS
# WORK holds the corpora (names in data.py) and smollm2.gguf; without the latter only the corpora
# are used, which is enough to try the scripts.
set -eo pipefail
here=$(dirname "$0") work=$1
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$work/inductor TORCHINDUCTOR_FX_GRAPH_CACHE=1
written=
if [ -f "$work/smollm2.gguf" ]; then
  python3 "$here/generate_text.py" --model "$work/smollm2.gguf" --out "$work/written.jsonl" \
    --seconds "$2" 2>&1 | tee "$OUT/text.log"
  written="--written $work/written.jsonl"
fi
python3 "$here/data.py" --text "$work" $written --out "$work/data" 2>&1 | tee "$OUT/data.log"
if [ -n "$written" ]; then
  # The written text comes back too, in parts, so that training can be repeated.
  (gzip -6 -c "$work/written.jsonl" | split -b 15000000 - "$work/written.gz.") &
fi
python3 "$here/train.py" --data "$work/data" --out "$work/run" --seconds "$3" $4 2>&1 |
  tee "$OUT/train.log"
wait
cp "$work"/run/checkpoint/*.safetensors "$work"/run/report.json "$OUT"
tar -czf "$OUT/small.tar.gz" -C "$work/run/checkpoint" config.json engram.json tokenizer.json \
  tokenizer_config.json model.safetensors.index.json -C "$work/data" heldout.txt \
  -C "$OUT" data.log train.log
rm -f "$OUT"/*.log
for part in aa ab ac ad; do
  [ -f "$work/written.gz.$part" ] && cp "$work/written.gz.$part" "$OUT" || true
done
ls -l "$OUT"
