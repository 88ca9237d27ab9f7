//! What is wrong with a volume source, as a value: it is logged, recorded and explained.

/// Why a volume source leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It does not parse.
    #[error("source {key} cannot be read: {error}")]
    Unreadable {
        /// Key of the source.
        key: &'static str,
        /// What the parser said.
        error: String,
    },
    /// A CSI driver's name is missing or has a `^`, which separates it from the handle.
    #[error("{0:?} is not the name of a CSI driver")]
    DriverName(String),
    /// Nothing says which volume it is.
    #[error("the source does not name a volume")]
    NoHandle,
    /// An EBS volume id of no known form.
    #[error("{0:?} is not the id of an EBS volume")]
    EbsVolumeId(String),
    /// The zones of a regional GCE disk do not make one region.
    #[error("zones {0:?} do not make one region")]
    GceZones(String),
    /// An Azure disk that is not a managed one.
    #[error("Azure disks of kind {0:?} have no CSI driver")]
    AzureDiskKind(String),
    /// Neither source nor claim says in which namespace an Azure File secret is.
    #[error("neither source nor claim names the namespace of the secret")]
    NoSecretNamespace,
}
