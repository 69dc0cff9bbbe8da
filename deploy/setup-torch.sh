#!/usr/bin/env bash
# Installs PyTorch, TorchRec and what else Python tests and measurements use (deploy/python-requirements.txt) into a virtual
# environment of its own in the cache, about 6 GB. Does nothing where all of it is there. Where it can't be had, says why and
# succeeds, since all but the tests with PyTorch run without.
set -uo pipefail
cd "$(dirname "$0")"

needed_gib=12
folder="${ROWMILL_CACHE:-$HOME/.cache/rowmill}/peers"
stamp="$folder/$(sha256sum <python-requirements.txt | cut -c 1-16)"

skip() {
    echo "PyTorch is not there: $1"
    echo "What needs it is left out; the rest runs."
    exit 0
}

# Packages that must agree: they are imported, and pool a bag.
prove() {
    "$folder/bin/python" - <<'END'
import torch, torchrec

table = torchrec.EmbeddingBagConfig(num_embeddings=4, embedding_dim=4, name="t", feature_names=["f"])
bags = torchrec.EmbeddingBagCollection(tables=[table], device="cpu")
keyed = torchrec.KeyedJaggedTensor(["f"], torch.tensor([1, 2]), lengths=torch.tensor([2], dtype=torch.int32))
assert torch.equal(bags(keyed)["f"][0], bags.embedding_bags["t"].weight[1:3].sum(0))
print(f"torch {torch.__version__} and torchrec {torchrec.__version__} are there")
END
}

if [ -f "$stamp" ]; then
    exit 0
fi
python3 -c 'import venv, ensurepip' 2>/dev/null || skip "Python has no venv; as root, run: apt-get install python3-venv"
mkdir -p "$folder"
if [ ! -d "$folder"/lib/python3*/site-packages/torch ]; then
    free_gib=$(df --output=avail -BG "$folder" | tail -1 | tr -dc 0-9)
    [ "$free_gib" -ge "$needed_gib" ] || skip "$folder has $free_gib GiB free, and $needed_gib are needed"
fi
echo "installing what deploy/python-requirements.txt lists into $folder"
python3 -m venv "$folder" || skip "no virtual environment could be made in $folder"
# The part after the line `# --no-deps` is installed without dependencies.
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" -r <(sed '/^# --no-deps/,$d' python-requirements.txt) || skip "pip could not install it"
"${pip[@]}" --no-deps -r <(sed -n '/^# --no-deps/,$p' python-requirements.txt) || skip "pip could not install TorchRec"
prove || skip "torch and torchrec were installed but do not work together; the message stands above"
touch "$stamp"
