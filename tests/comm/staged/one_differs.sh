#!/bin/sh
# one_differs.sh TOOL LAUNCHER RANKS: the last rank alone is given another setting, or other data. Each time the run
# ends at once, with what differs, and leaves nothing; what a rank may have by itself ends nothing.
tool=$1 launcher=$2 ranks=$3
last=$((ranks - 1))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/work"
cd "$folder/work" || exit 1
seq -f 'line %g of a text that is trained on' 600 >../text.txt
seq -f 'line %g of a text that is trained on' 500 >../shorter.txt
cp ../text.txt ../copy.txt
cat >../run.toml <<END
model = {layers = 2, heads = 2, channels = 16, context = 16}
mesh = {shard = $ranks}
schedule = {kind = "constant"}
data = {train = "$folder/text.txt"}
run = {steps = 3, sequences = 2, length = 16, deadline = 5, device_memory = "1 GiB"}
strategy = {recompute = "auto"}
END
cat >../rank.sh <<'END'
#!/bin/sh
# rank.sh TOOL LAST SETTING: the tool as one rank; the last one with SETTING.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}
if [ "$rank" = "$2" ]; then exec "$1" train ../run.toml --set "$3"; fi
exec "$1" train ../run.toml
END
chmod +x ../rank.sh

run() { timeout --signal=KILL 60 "$launcher" "$ranks" ../rank.sh "$tool" $last "$1" >../out.txt 2>&1; }

refused() {  # SETTING TEXT
  run "$1"
  status=$?
  [ $status -eq 77 ] && exit 77
  if [ $status -eq 0 ] || ! grep -qF "rank $last $2" ../out.txt || [ -n "$(ls -A)" ]; then
    cat ../out.txt
    echo "one_differs: $1: status $status, expected to fail with: rank $last $2; left: $(ls -A)" >&2
    exit 1
  fi
}
other='was given another configuration than rank 0'
refused data.seed=2 "$other (data.seed: 1 -> 2)"
refused run.steps=2 "$other (run.steps: 3 -> 2)"
refused run.evaluate_every=1 "$other (run.evaluate_every: 0 -> 1)"
refused run.checkpoint=saved "$other (run.checkpoint: \"\" -> \"given\")"
refused run.export=exported "$other (run.export: \"\" -> \"given\")"
refused run.threads_per_rank=2 "$other (run.threads_per_rank: 1 -> 2)"
refused "data.train=$folder/shorter.txt" 'finds '
grep -q "at data.train, '$folder/shorter.txt', and rank 0 " ../out.txt || exit 1

for setting in "data.train=$folder/copy.txt" run.deadline=20 run.pin=false run.sample_prompt="The "; do
  run "$setting" || { cat ../out.txt; echo "one_differs: $setting ended the run" >&2; exit 1; }
done
