//! Volume sources, of pods and of PersistentVolumes. Each is decoded by itself: one that cannot be read
//! becomes `Malformed`, as in JSON, and blocks that volume alone (S42).

use bytes::Bytes;
use prost::Message;

use crate::kinds::{InTreeSource, Malformed, Source};

/// The sources of one volume by key, undecoded, of which at most one is present.
pub(super) type Sources<'a, const N: usize> = [(&'static str, &'a Option<Bytes>); N];

/// A source that can be read from protobuf.
pub(super) trait ReadSource: Source {
    /// Reads the message under one of the keys.
    fn read_message(key: &'static str, raw: &Bytes) -> Self;
}

/// The one source that is there.
pub(super) fn pick<S: ReadSource, const N: usize>(sources: Sources<'_, N>) -> Option<S> {
    let mut picked = None;
    for (key, raw) in sources {
        let Some(raw) = raw else { continue };
        picked = Some(match picked {
            None => S::read_message(key, raw),
            Some(_) => S::malformed(Malformed { key, error: "it is not the only source".to_owned() }),
        });
    }
    picked
}

/// Reads a source as a message of that type.
pub(super) fn parse<T: Message + Default, S: Source>(
    key: &'static str,
    raw: &Bytes,
    variant: impl FnOnce(T) -> S,
) -> S {
    match T::decode(raw.clone()) {
        Ok(source) => variant(source),
        Err(error) => S::malformed(Malformed { key, error: error.to_string() }),
    }
}

impl ReadSource for InTreeSource {
    fn read_message(key: &'static str, raw: &Bytes) -> Self {
        match key {
            "awsElasticBlockStore" => parse(key, raw, Self::AwsElasticBlockStore),
            "gcePersistentDisk" => parse(key, raw, Self::GcePersistentDisk),
            "azureDisk" => parse(key, raw, Self::AzureDisk),
            "azureFile" => parse(key, raw, Self::AzureFile),
            "cinder" => parse(key, raw, Self::Cinder),
            "vsphereVolume" => parse(key, raw, Self::VsphereVolume),
            "portworxVolume" => parse(key, raw, Self::PortworxVolume),
            "iscsi" => parse(key, raw, Self::Iscsi),
            "fc" => parse(key, raw, Self::Fc),
            "flexVolume" => parse(key, raw, Self::FlexVolume),
            _ => Self::malformed(Malformed { key, error: "unknown source".to_owned() }),
        }
    }
}
