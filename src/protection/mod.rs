//! The two protection controllers: a claim stays while a pod uses it, a volume while it is bound (pv-binder §15.1, §15.2).
//!
//! In: claims, volumes and pods from the shared tables. Out: patches that put the protection finalizer on, or take it off
//! an object that is being deleted. Off by default: kube-controller-manager runs its own unless its `--controllers`
//! switches them off, and only one of both should. Each patch names UID and revision, so that two of them do no harm.
//!
//! Both are [`crate::controller::finalizer`]; what uses a claim, and what a volume, is here.

pub mod claims;
pub mod volumes;
