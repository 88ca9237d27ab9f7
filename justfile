# The commands that one needs. `just` is not required (`cargo install just`): each recipe is a line that works by itself, and
# CONTRIBUTING.md has the same ones.

# This list.
default:
    @just --list

# A cluster in the process, to be looked at.
demo *args:
    cargo run -- demo {{args}}

# Against the cluster of a kubeconfig, with kube-controller-manager's two loops switched off there. With the Deployment's lease it
# stands by while that runs.
run *args:
    cargo run --release --package mooring -- run --kubeconfig ~/.kube/config --leader-elect-resource-namespace mooring-system {{args}}

# What a small change needs, in a minute: units, cases, documents.
quick:
    cargo test --lib --test attach_detach_cases --test binder_cases --test docs

# The stories on the embedded server.
stories *filter:
    cargo test --test e2e -- embedded::{{filter}}

# The stories on a real API server.
real *filter:
    MOORING_STORIES=all cargo test --test e2e -- real::{{filter}}

# One random history again, by the seed that a failure printed.
seed number:
    MOORING_SEED={{number}} cargo test --test attach_detach_histories

# Format and lints, as CI has them.
lint:
    cargo fmt --all
    cargo clippy --locked --workspace --all-targets -- -D warnings

# Pages and dashboards that are printed from the code.
generate:
    MOORING_WRITE_DOCS=1 cargo test --lib -- docs reference
    MOORING_WRITE_DOCS=1 cargo test --test docs -- index
    dashboards/generate

# All that CI runs for a change.
ci:
    .ci/run

# Side by side with kube-controller-manager, and with the bare writes.
duel *args:
    cargo bench --bench duel -- {{args}}
