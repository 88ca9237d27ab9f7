//! The same for each kind: which one it is, an object or a name says.
//!
//! In: an [`ObjectRef`](super::ObjectRef) or a name of a kind, and an expression over a type. Out: the expression, with that type.

/// Does something with the key of an object, as one of its kind.
#[macro_export]
macro_rules! with_object {
    ($object:expr, |$key:ident: $kind:ident| $do:expr) => {
        $crate::with_object!(@ $object, $key, $kind, $do, Node: Node, Pod: Pod, Volume: PersistentVolume,
            Claim: PersistentVolumeClaim, Attachment: VolumeAttachment, Class: StorageClass, Driver: CsiDriver,
            AttributesClass: VolumeAttributesClass)
    };
    (@ $object:expr, $key:ident, $kind:ident, $do:expr, $($variant:ident: $type:ident),+) => {
        match $object {
            $($crate::kinds::ObjectRef::$variant($key) => {
                type $kind = $crate::kinds::$type;
                $do
            })+
        }
    };
}

/// Does something with the kind of which a constant, such as `KIND` or `PLURAL`, has this value; else something else.
#[macro_export]
macro_rules! with_kind {
    ($constant:ident = $value:expr, |$kind:ident| $do:expr, else $other:expr) => {
        $crate::with_kind!(@ $constant, $value, $kind, $do, $other, Node, Pod, PersistentVolume,
            PersistentVolumeClaim, VolumeAttachment, StorageClass, CsiDriver, VolumeAttributesClass)
    };
    (@ $constant:ident, $value:expr, $kind:ident, $do:expr, $other:expr, $($type:ident),+) => {
        match $value {
            $(<$crate::kinds::$type as $crate::kinds::Narrow>::$constant => {
                type $kind = $crate::kinds::$type;
                $do
            })+
            _ => $other,
        }
    };
}
