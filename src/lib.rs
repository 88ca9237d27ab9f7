//! mooring: attach/detach controller and PV binder for Kubernetes.

pub mod attach_detach;
pub mod kube_api;
pub mod metrics;
pub mod state;
