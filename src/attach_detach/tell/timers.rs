//! What there is to log of the force-detach timers, as values: planning logs nothing itself.

use crate::kube_api::call::CallError;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// More detaches wait than are kept; so many are not.
    LeftOut(usize),
    /// What a predecessor wrote is not believed.
    BeginAnew {
        /// Name of the ConfigMap.
        config_map: String,
        /// Its entries.
        waits: usize,
    },
    /// The ConfigMap cannot be read or written.
    CannotBeKept {
        /// Namespace and name of the ConfigMap.
        config_map: String,
        /// Why.
        error: CallError,
    },
    /// It can again.
    KeptAgain,
    /// There is nothing left to write.
    NoneLeft,
    /// The ConfigMap of an earlier version is there, and not believed.
    EarlierBeginAnew {
        /// Path of the ConfigMap.
        config_map: String,
        /// Its entries.
        waits: usize,
    },
    /// The ConfigMap of an earlier version could not be read or deleted.
    EarlierLeft {
        /// Path of the ConfigMap.
        config_map: String,
        /// Why.
        error: CallError,
    },
}
