//! A service as a lock file.

use std::fmt::{self, Display, Write};

use crate::service::{Reserved, ServiceDescription};
use crate::shape::{Field, Kind, Node, Signature, Variant};

/// The first line of each lock file.
pub(super) const TITLE: &str = "# farcall lock 1: what the clients of a service rely on";

/// Behind the name of a type that may grow.
pub(super) const MAY_GROW: &str = " may grow";

pub(super) fn text(service: &ServiceDescription, reserved: &[Reserved]) -> String {
    let mut lock = Text { text: String::new(), types: Vec::new() };
    // Writing into a String does not fail.
    let _ = lock.service(service, reserved);
    lock.text
}

/// The text so far, and the types that it mentions.
struct Text {
    text: String,
    types: Vec<(String, &'static Node)>,
}

impl Text {
    fn service(&mut self, service: &ServiceDescription, reserved: &[Reserved]) -> fmt::Result {
        writeln!(self.text, "{TITLE}\n\nservice {}", service.name)?;
        for reserved in reserved {
            match reserved {
                Reserved::Name(name, id) => writeln!(self.text, "reserved {id:#010x} {name}")?,
                Reserved::Id(id) => writeln!(self.text, "reserved {id:#010x}")?,
            }
        }
        let mut methods: Vec<_> = service.methods.iter().collect();
        methods.sort_by_key(|method| method.name);
        for method in methods {
            let idempotent = if method.idempotent { " idempotent" } else { "" };
            let (name, id, shape) = (method.name, method.id, method.shape);
            writeln!(self.text, "\nmethod {name} {id:#010x} shape {shape:#018x}{idempotent}")?;
            if let Some(signature) = method.signature {
                self.signature(signature)?;
            }
        }
        self.types.sort_by(|one, other| one.0.cmp(&other.0));
        for (name, node) in &self.types {
            match node.kind() {
                Kind::Growing(inner) => {
                    writeln!(self.text, "\ntype {name}{MAY_GROW}")?;
                    definition(&mut self.text, inner)?;
                }
                _ => {
                    writeln!(self.text, "\ntype {name}")?;
                    definition(&mut self.text, node)?;
                }
            }
        }
        Ok(())
    }

    fn signature(&mut self, signature: &Signature) -> fmt::Result {
        for Field { name, node, .. } in signature.arguments {
            writeln!(self.text, "  {name}: {node}")?;
            self.mention(node);
        }
        writeln!(self.text, "  -> {}", signature.value)?;
        self.mention(signature.value);
        if let Some(error) = signature.error {
            writeln!(self.text, "  or {error}")?;
            self.mention(error);
        }
        Ok(())
    }

    /// Keeps the structs and enums within this type, to define each once.
    fn mention(&mut self, node: &'static Node) {
        match node.kind() {
            Kind::Primitive(_) | Kind::Opaque(_) | Kind::Whole | Kind::Enclosing(_) => {}
            Kind::Sequence(part) | Kind::Option(part) | Kind::Array(part, _) => self.mention(part),
            Kind::Tuple(parts) => parts.iter().for_each(|part| self.mention(part)),
            Kind::Struct(..) | Kind::Enum(..) => {
                if self.is_new(node) {
                    self.mention_parts(node);
                }
            }
            Kind::Growing(inner) => {
                if self.is_new(node) {
                    self.mention_parts(inner);
                }
            }
        }
    }

    fn mention_parts(&mut self, node: &'static Node) {
        match node.kind() {
            Kind::Struct(_, fields) => fields.iter().for_each(|field| self.mention(field.node)),
            Kind::Enum(_, variants) => {
                let fields = variants.iter().flat_map(|variant| variant.fields);
                fields.for_each(|field| self.mention(field.node));
            }
            _ => {}
        }
    }

    fn is_new(&mut self, node: &'static Node) -> bool {
        let name = node.to_string();
        // Types of different modules may have the same name.
        let known = self.types.iter().any(|(n, known)| *n == name && known.hash() == node.hash());
        if !known {
            self.types.push((name, node));
        }
        !known
    }
}

fn definition(text: &mut String, node: &Node) -> fmt::Result {
    match node.kind() {
        Kind::Struct(_, fields) => fields.iter().try_for_each(|Field { name, node, since }| {
            writeln!(text, "  {name}: {node}{}", Since(*since))
        }),
        Kind::Enum(_, variants) => variants.iter().enumerate().try_for_each(|(number, variant)| {
            writeln!(text, "  {number} {}{}", Shown(variant), Since(variant.since))
        }),
        _ => Ok(()),
    }
}

/// ` since 2`; nothing for what the first version had.
struct Since(u32);

impl Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 1 { write!(f, " since {}", self.0) } else { Ok(()) }
    }
}

/// `Moved { x: i32 }`, `Bought(u32)`, `Over`.
struct Shown(&'static Variant);

impl Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Variant { name, fields, .. } = self.0;
        let (open, close) = match fields {
            [] => return f.write_str(name),
            [Field { name: "", .. }, ..] => ("(", ")"),
            _ => (" { ", " }"),
        };
        write!(f, "{name}{open}")?;
        for (index, Field { name, node, .. }) in fields.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let colon = if name.is_empty() { "" } else { ": " };
            write!(f, "{separator}{name}{colon}{node}")?;
        }
        f.write_str(close)
    }
}
