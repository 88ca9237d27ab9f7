//! mooring: attach/detach controller and PV binder for Kubernetes.

pub mod binder;
pub mod kube_api;
pub mod metrics;
pub mod state;
