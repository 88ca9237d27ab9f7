//! The fence: admission policies that deny the writes of kube-controller-manager's (KCM's) storage loops, so that mooring
//! can rule beside a whole KCM.
//!
//! There is one policy with its binding for each loop, by the name of the loop's ServiceAccount; no other user is denied
//! anything but the probe, a dry-run create of one named VolumeAttachment. [`policies`] has them as values, from which
//! `deploy/fence` is printed. [`probe`] asks an API server whether it enforces one, [`state`] judges what was seen: the
//! objects say what is meant, the answer to the probe says what that server does. [`vigil`] draws a daemon's conclusions. The daemon (`--fence`), `mooring
//! preflight` and `mooring switch` all use the same values and the same judgement.

pub(crate) mod arguments;
pub(crate) mod ask;
pub(crate) mod controllers;
mod kcm_controllers;
pub(crate) mod metrics;
pub mod policies;
pub mod probe;
pub(crate) mod rehearsal;
pub mod state;
#[cfg(test)]
mod tests;
pub(crate) mod vigil;
