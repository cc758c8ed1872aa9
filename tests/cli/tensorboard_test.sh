#!/usr/bin/env bash
# tensorboard_test.sh TOOL TEXT: TensorBoard itself reads what run.tensorboard wrote, also of a run that was continued from
# before its end: each step counts once, with the value of the metrics file. Status 77 where python3 has no TensorBoard.
set -euo pipefail
tool=$(realpath "$1")
text=$(realpath "$2")
python=${TESSERA_TENSORBOARD_PYTHON:-python3}
"$python" -c 'import tensorboard' 2>/dev/null || { echo "skipped: $python has no tensorboard"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >run.toml <<END
[model]
layers = 1
heads = 2
channels = 16
context = 16
[run]
steps = 4
sequences = 2
length = 16
metrics = "metrics.jsonl"
tensorboard = "events"
checkpoint = "saved"
resume = "auto"
checkpoint_every = 4
checkpoint_keep = 5
evaluate_every = 2
[data]
train = "$text"
validation_fraction = 0.2
END
"$tool" train run.toml >/dev/null
cp -r saved saved4
"$tool" train run.toml --set run.steps=7 >/dev/null
rm -rf saved && mv saved4 saved  # as if the save of step 7 was lost
"$tool" train run.toml --set run.steps=9 >/dev/null
"$python" - <<'END' 2>/dev/null
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("events")
events.Reload()
lines = [json.loads(line) for line in open("metrics.jsonl")]
for tag, field in (("loss/train", "loss"), ("loss/validation", "validation_loss"), ("speed/hidden", "hidden"),
                   ("optimizer/gradient_norm", "gradient_norm")):
    expected = {line["step"]: line[field] for line in lines if field in line}
    found = [(event.step, event.value) for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []
    assert [step for step, _ in found] == sorted(expected), (tag, found, expected)
    for step, value in found:
        assert abs(value - expected[step]) <= 1e-6 * abs(expected[step]), (tag, step, value, expected[step])
assert len(events.Scalars("loss/train")) == 9
END
