//! The shapes of the API types, read once from `types.txt`.
//!
//! In: the text that `tests/control-plane/schema.go` prints from the Go types of the pinned
//! release. Out: for every type its fields, their types, whether an empty value is left out, and
//! how a strategic merge treats lists. Decoding, patches and OpenAPI all read this one table.

pub mod decode;
pub mod quantity;

use std::{collections::HashMap, sync::LazyLock};

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text.
    Text,
    /// A whole number of so many bits.
    Integer(u32),
    /// A floating point number.
    Float,
    /// True or false.
    Bool,
    /// Base64.
    Bytes,
    /// A quantity.
    Quantity,
    /// A number or text.
    IntOrString,
    /// RFC 3339 in seconds.
    Time,
    /// RFC 3339 in microseconds.
    MicroTime,
    /// Not looked into.
    Any,
    /// May be null.
    Pointer(Box<Shape>),
    /// A list.
    List(Box<Shape>),
    /// A map with text keys.
    Map(Box<Shape>),
    /// A type of the table, by name.
    Named(&'static str),
}

impl Shape {
    fn parse(text: &'static str) -> Self {
        if let Some(inner) = text.strip_prefix('*') {
            return Self::Pointer(Box::new(Self::parse(inner)));
        }
        if let Some(inner) = text.strip_prefix("[]") {
            return Self::List(Box::new(Self::parse(inner)));
        }
        if let Some(inner) = text.strip_prefix("{}") {
            return Self::Map(Box::new(Self::parse(inner)));
        }
        match text {
            "string" => Self::Text,
            "bool" => Self::Bool,
            "int32" | "uint8" => Self::Integer(32),
            "int64" => Self::Integer(64),
            "float64" => Self::Float,
            "bytes" => Self::Bytes,
            "quantity" => Self::Quantity,
            "int-or-string" => Self::IntOrString,
            "time" => Self::Time,
            "microtime" => Self::MicroTime,
            "any" => Self::Any,
            name => Self::Named(name),
        }
    }

    /// The shape without the pointer.
    pub fn target(&self) -> &Self {
        match self {
            Self::Pointer(inner) => inner.target(),
            other => other,
        }
    }
}

/// One field of a type.
#[derive(Clone, Debug)]
pub struct Field {
    /// JSON name.
    pub name: &'static str,
    /// Type.
    pub shape: Shape,
    /// Left out when empty.
    pub omit_empty: bool,
    /// Strategic merge: the list is merged, by this key; an empty key is a set of scalars.
    pub merge_key: Option<&'static str>,
    /// Strategic merge: fields of an element that the patch does not name go away.
    pub retain_keys: bool,
}

/// A type with its fields in Go's order.
#[derive(Clone, Debug, Default)]
pub struct Type {
    /// Fields.
    pub fields: Vec<Field>,
    by_name: HashMap<&'static str, usize>,
}

impl Type {
    /// A field by its JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(*self.by_name.get(name)?)
    }
}

/// All types, by name.
pub type Types = HashMap<&'static str, Type>;

static TYPES: LazyLock<Types> = LazyLock::new(|| parse(include_str!("types.txt")));

/// The types of the pinned release.
pub fn types() -> &'static Types {
    &TYPES
}

fn parse(text: &'static str) -> Types {
    let mut types = Types::new();
    let mut name = "";
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (line.starts_with(' '), words.next(), words.next()) {
            (false, Some("type"), Some(type_name)) => {
                name = type_name;
                types.insert(name, Type::default());
            }
            (true, Some(field), Some(shape)) => {
                let mut field = Field {
                    name: field,
                    shape: Shape::parse(shape),
                    omit_empty: false,
                    merge_key: None,
                    retain_keys: false,
                };
                for flag in words {
                    match flag {
                        "omitempty" => field.omit_empty = true,
                        "merge" => field.merge_key = Some(""),
                        "retainKeys" => field.retain_keys = true,
                        _ => field.merge_key = flag.strip_prefix("merge="),
                    }
                }
                let parent = types.entry(name).or_default();
                parent.by_name.insert(field.name, parent.fields.len());
                parent.fields.push(field);
            }
            _ => {}
        }
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(shape: &Shape, found: &mut Vec<&'static str>) {
        match shape {
            Shape::Pointer(inner) | Shape::List(inner) | Shape::Map(inner) => names(inner, found),
            Shape::Named(name) => found.push(name),
            _ => {}
        }
    }

    #[test]
    fn every_named_type_is_in_the_table() {
        let types = types();
        assert!(types.len() > 100);
        for (name, described) in types {
            for field in &described.fields {
                let mut found = Vec::new();
                names(&field.shape, &mut found);
                for inner in found {
                    assert!(types.contains_key(inner), "{name}.{} is a {inner}", field.name);
                }
            }
        }
    }

    #[test]
    fn the_list_that_kubelets_wait_for_is_atomic() {
        let status = &types()["core/v1.NodeStatus"];
        assert_eq!(status.field("volumesAttached").unwrap().merge_key, None);
        assert_eq!(status.field("volumesInUse").unwrap().merge_key, None);
        assert_eq!(status.field("conditions").unwrap().merge_key, Some("type"));
    }
}
