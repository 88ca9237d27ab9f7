//! The ConfigMap of mooring 0.1.0, which kept *when* waits began, by the clock of its own machine.
//!
//! Nothing in it can be believed on another machine, so no wait goes on from it: each begins anew, once. It is read
//! once and deleted, as it was read, lest a 0.1.0 that is put back goes on from times of long ago.

use serde_json::json;

use crate::{
    attach_detach::tell::timers::Said,
    kube_api::{
        call::{CallError, Request, Verb},
        kinds::{ConfigMap, Meta},
    },
};

/// What is left to do about it.
#[derive(Clone, Debug, Default)]
pub(super) enum EarlierMap {
    /// To be read.
    Unread(String),
    /// To be deleted, as it was read.
    Read(String, Box<Meta>),
    #[default]
    Done,
}

impl EarlierMap {
    pub(super) fn named(path: Option<String>) -> Self {
        path.map_or(Self::Done, Self::Unread)
    }

    /// The next request about it, which is made once.
    pub(super) fn next(&mut self) -> Option<Request> {
        match self {
            Self::Unread(path) => Some(Request { verb: Verb::Get, path: path.clone(), body: None }),
            Self::Read(path, metadata) => {
                let preconditions =
                    json!({ "uid": metadata.uid, "resourceVersion": metadata.resource_version });
                let body = Some(json!({ "preconditions": preconditions }));
                Some(Request { verb: Verb::Delete, path: path.clone(), body })
            }
            Self::Done => None,
        }
    }

    /// Takes what became of the request.
    pub(super) fn take(&mut self, result: Result<Option<ConfigMap>, CallError>) -> Option<Said> {
        let mut said = None;
        *self = match (std::mem::take(self), result) {
            (Self::Unread(path), Ok(Some(map))) => {
                said = Some(Said::EarlierBeginAnew { config_map: path.clone(), waits: map.data.len() });
                Self::Read(path, Box::new(map.metadata))
            }
            (Self::Unread(path) | Self::Read(path, _), Err(error)) => {
                if !matches!(error, CallError::NotFound(_) | CallError::NotLeader) {
                    said = Some(Said::EarlierLeft { config_map: path, error });
                }
                Self::Done
            }
            _ => Self::Done,
        };
        said
    }
}
