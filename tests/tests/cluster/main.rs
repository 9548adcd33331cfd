//! Windlass beside a stock node in a real cluster: the real API server, controller manager, flanneld, kube-proxy and
//! flannel's CNI plugin. Needs root, and what `.ci/peers` builds; else SKIPPED.

mod matrix;

use windlass_tests::traffic::Traffic;

fn traffic() -> Traffic {
    Traffic::new(env!("CARGO_BIN_EXE_windlass-traffic"))
}
