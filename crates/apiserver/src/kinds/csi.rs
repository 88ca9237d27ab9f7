//! CSIDriver: whether a driver attaches at all.

use serde::Deserialize;

use super::{Keep, Meta, meta::referenced};
use crate::protobuf::message;

/// A CSIDriver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: CsiDriverSpec,
}
message!(CsiDriver { metadata: 1 by referenced, spec: 2 });

/// `spec` of a CSIDriver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpec {
    /// Whether volumes of the driver must be attached; absent means yes (attach-detach §2.3).
    pub attach_required: Option<bool>,
}
message!(CsiDriverSpec { attach_required: 1 });

impl Keep for CsiDriver {
    fn trim(&mut self) {
        self.metadata.finalizers.clear();
        self.metadata.keep_owners(|_| false);
    }
}
