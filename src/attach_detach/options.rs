//! What the operator may choose.

use std::time::Duration;

/// When to force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcePolicy {
    /// Whether time alone may force. KCM: `--disable-force-detach-on-timeout`.
    pub on_timeout: bool,
    /// How long a node that is not Ready is waited for. KCM: reconciler, `maxWaitForUnmountDuration`,
    /// six minutes.
    pub unready: Duration,
    /// How long a node whose object is gone is waited for: its absence does not prove its kubelet dead
    /// (H9), so the default is the same.
    pub gone: Duration,
}

impl Default for ForcePolicy {
    fn default() -> Self {
        let six_minutes = Duration::from_mins(6);
        Self { on_timeout: true, unready: six_minutes, gone: six_minutes }
    }
}

/// What the operator may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachDetachOptions {
    /// When a detach may be forced.
    pub force: ForcePolicy,
    /// How often everything is looked at although nothing happened; `None` for never.
    pub sweep_period: Option<Duration>,
    /// How many requests for volumes on nodes may be under way; `None` for
    /// [`ATTACHMENT_CALLS`](super::dispatcher::ATTACHMENT_CALLS).
    pub attachment_calls: Option<usize>,
}
