//! The description of a shape: a tree that the compiler builds, each node with its hash.

use core::fmt;

use super::hash::Hasher;

/// The shape of one type.
#[derive(Debug)]
pub struct Node {
    hash: u64,
    kind: Kind,
}

/// What a [`Node`] is.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A type of the format: a number, `bool`, `char`, `str`.
    Primitive(&'static str),
    /// A type that is known by this name only.
    Opaque(&'static str),
    /// A byte string that is the whole message.
    Whole,
    /// The type of this name, of which this is a part.
    Enclosing(&'static str),
    /// A number of values of this shape, with the number in front.
    Sequence(&'static Node),
    /// A value of this shape, or none.
    Option(&'static Node),
    /// This many values.
    Array(&'static Node, usize),
    /// Values one after the other.
    Tuple(&'static [&'static Node]),
    /// A struct with named fields.
    Struct(Named, &'static [Field]),
    /// An enum.
    Enum(Named, &'static [Variant]),
    /// A struct or an enum that may grow: its length is in front.
    Growing(&'static Node),
}

/// The name of a struct or an enum, for people: it is not part of the hash.
#[derive(Debug)]
pub struct Named {
    /// The name in the program.
    pub name: &'static str,
    /// The shapes of its type parameters.
    pub arguments: &'static [&'static Node],
}

/// A field of a struct or of a variant, or an argument of a method.
#[derive(Debug)]
pub struct Field {
    /// Its name; empty in a tuple variant.
    pub name: &'static str,
    /// Its shape.
    pub node: &'static Node,
    /// The version of its type that added it, if the type may grow; otherwise 1.
    pub since: u32,
}

impl Field {
    /// A field with this name; the fields of tuple variants have an empty name.
    pub const fn new(name: &'static str, node: &'static Node) -> Self {
        Field { name, node, since: 1 }
    }

    /// The same field, added by a later version. It does not count in the hash.
    pub const fn since(mut self, version: u32) -> Self {
        self.since = version;
        self
    }
}

/// A variant of an enum. Its position in the enum is its number in the encoding.
#[derive(Debug)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
    /// The version of the enum that added it, if the enum may grow; otherwise 1.
    pub since: u32,
}

impl Variant {
    /// A variant with this name and these fields.
    pub const fn new(name: &'static str, fields: &'static [Field]) -> Self {
        Variant { name, fields, since: 1 }
    }

    /// The same variant, added by a later version. It does not count in the hash.
    pub const fn since(mut self, version: u32) -> Self {
        self.since = version;
        self
    }
}

impl Node {
    /// The hash that client and server compare.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// What it is.
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    const fn new(hasher: Hasher, kind: Kind) -> Self {
        Node { hash: hasher.finish(), kind }
    }

    pub(super) const fn primitive(name: &'static str) -> Self {
        Node::new(Hasher::new("primitive").text(name), Kind::Primitive(name))
    }

    /// A type whose encoding has this name: both ends must give it the same name.
    pub const fn opaque(name: &'static str) -> Self {
        Node::new(Hasher::new("opaque").text(name), Kind::Opaque(name))
    }

    /// A byte string that is the whole message, without its length.
    pub const fn whole() -> Self {
        Node::new(Hasher::new("whole"), Kind::Whole)
    }

    /// The type that contains this one: shapes of types that contain themselves end here.
    pub const fn enclosing(name: &'static str) -> Self {
        Node::new(Hasher::new("enclosing").text(name), Kind::Enclosing(name))
    }

    pub(super) const fn sequence(element: &'static Node) -> Self {
        Node::new(Hasher::new("sequence").number(element.hash), Kind::Sequence(element))
    }

    pub(super) const fn option(value: &'static Node) -> Self {
        Node::new(Hasher::new("option").number(value.hash), Kind::Option(value))
    }

    pub(super) const fn array(element: &'static Node, len: usize) -> Self {
        let hasher = Hasher::new("array").number(element.hash).number(len as u64);
        Node::new(hasher, Kind::Array(element, len))
    }

    /// Values one after the other, without names.
    pub const fn tuple(parts: &'static [&'static Node]) -> Self {
        let mut hasher = Hasher::new("tuple").number(parts.len() as u64);
        let mut at = 0;
        while at < parts.len() {
            hasher = hasher.number(parts[at].hash);
            at += 1;
        }
        Node::new(hasher, Kind::Tuple(parts))
    }

    /// A struct with named fields; `arguments` are the shapes of its type parameters.
    pub const fn structure(
        name: &'static str,
        arguments: &'static [&'static Node],
        fields: &'static [Field],
    ) -> Self {
        let hasher = add_fields(Hasher::new("struct"), fields);
        Node::new(hasher, Kind::Struct(Named { name, arguments }, fields))
    }

    /// An enum; `arguments` are the shapes of its type parameters.
    pub const fn enumeration(
        name: &'static str,
        arguments: &'static [&'static Node],
        variants: &'static [Variant],
    ) -> Self {
        let mut first = 0;
        while first < variants.len() && variants[first].since == 1 {
            first += 1;
        }
        let mut hasher = Hasher::new("enum").number(first as u64);
        let mut at = 0;
        while at < first {
            hasher = add_fields(hasher.text(variants[at].name), variants[at].fields);
            at += 1;
        }
        Node::new(hasher, Kind::Enum(Named { name, arguments }, variants))
    }

    /// This struct or enum, of a type that may grow: its shape is that of its first version.
    pub const fn growing(first: &'static Node) -> Self {
        Node::new(Hasher::new("growing").number(first.hash), Kind::Growing(first))
    }
}

/// Adds the fields of the first version; later ones come after them.
pub(super) const fn add_fields(hasher: Hasher, fields: &'static [Field]) -> Hasher {
    let mut first = 0;
    while first < fields.len() && fields[first].since == 1 {
        first += 1;
    }
    let mut hasher = hasher.number(first as u64);
    let mut at = 0;
    while at < first {
        hasher = hasher.text(fields[at].name).number(fields[at].node.hash);
        at += 1;
    }
    hasher
}

/// The type as one would write it in Rust; the parts of structs and enums are not shown.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Primitive(name) | Kind::Enclosing(name) => f.write_str(name),
            Kind::Opaque(name) => write!(f, "opaque {name:?}"),
            Kind::Whole => f.write_str("whole bytes"),
            Kind::Growing(node) => write!(f, "{node}"),
            Kind::Sequence(Node { kind: Kind::Primitive("u8"), .. }) => f.write_str("bytes"),
            Kind::Sequence(element) => write!(f, "[{element}]"),
            Kind::Option(value) => write!(f, "Option<{value}>"),
            Kind::Array(element, len) => write!(f, "[{element}; {len}]"),
            Kind::Tuple([only]) => write!(f, "({only},)"),
            Kind::Tuple(parts) => {
                f.write_str("(")?;
                list(f, parts)?;
                f.write_str(")")
            }
            Kind::Struct(Named { name, arguments }, _)
            | Kind::Enum(Named { name, arguments }, _) => {
                f.write_str(name)?;
                if arguments.is_empty() {
                    return Ok(());
                }
                f.write_str("<")?;
                list(f, arguments)?;
                f.write_str(">")
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, nodes: &[&Node]) -> fmt::Result {
    for (index, node) in nodes.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{node}")?;
    }
    Ok(())
}
