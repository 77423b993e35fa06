//! Hashes of names and signatures, the same in every build.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// FNV-1a: stable, and spreads names evenly. Nothing more is needed.
pub(crate) struct Hasher(u64);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a string and its end.
    pub(crate) fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0xFF]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn finish(self) -> u64 {
        self.0
    }
}

/// The id of a method: never 0.
pub(crate) fn method_id(service: &str, method: &str) -> u32 {
    let mut hasher = Hasher::new();
    hasher.add(service);
    hasher.add(method);
    let hash = hasher.finish();
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

/// The id of a later version of the method with this id: never 0.
pub(crate) fn version_id(service: &str, method: u32, version: u32) -> u32 {
    method_id(service, &format!("{method}@{version}"))
}

/// The tokens of a type as one string, without layout, elided lifetimes, and trailing commas of generics.
pub(crate) fn normalised(tokens: TokenStream) -> String {
    let mut text = String::new();
    append(tokens, &mut text);
    text
}

fn append(tokens: TokenStream, text: &mut String) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                text.push_str(open);
                append(group.stream(), text);
                text.push_str(close);
            }
            TokenTree::Punct(punct) if punct.as_char() == '\'' => match tokens.peek() {
                Some(TokenTree::Ident(ident)) if ident == "_" => {
                    tokens.next();
                    // `Key<'_, u8>` is `Key<u8>`.
                    if matches!(tokens.peek(), Some(TokenTree::Punct(comma)) if comma.as_char() == ',')
                    {
                        tokens.next();
                    }
                }
                _ => text.push('\''),
            },
            TokenTree::Punct(punct) => {
                if punct.as_char() == '>' && text.ends_with(',') {
                    text.pop();
                }
                if punct.as_char() == '>' && text.ends_with('<') {
                    // `Key<'_>` is `Key`.
                    text.pop();
                } else {
                    text.push(punct.as_char());
                }
            }
            word => {
                if text.ends_with(|last: char| last.is_alphanumeric() || last == '_') {
                    text.push(' ');
                }
                text.push_str(&word.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        normalised(text.parse().unwrap())
    }

    #[test]
    fn layout_and_elided_lifetimes_do_not_count() {
        assert_eq!(of("& [ u8 ]"), of("&'_ [u8]"));
        assert_eq!(
            of("Result<Option<Bytes,>, KvError,>"),
            of("Result < Option < Bytes > , KvError >")
        );
        assert_eq!(of("Key<'_>"), of("Key"));
        assert_eq!(of("Key<'_, u8>"), of("Key<u8>"));
    }

    #[test]
    fn what_makes_another_type_counts() {
        assert_ne!(of("(u8,)"), of("(u8)"));
        assert_ne!(of("u8"), of("u16"));
        assert_ne!(of("Cow<'static, str>"), of("Cow<str>"));
        assert_ne!(of("dyn A"), of("dynA"));
    }

    #[test]
    fn ids_stay_the_same_from_release_to_release() {
        assert_eq!(method_id("Kv", "get"), method_id("Kv", "get"));
        assert_ne!(method_id("Kv", "get"), method_id("Kvg", "et"));
        // A change of these numbers breaks every client that was built before it.
        assert_eq!(method_id("Kv", "get"), 0x4e10_e23b);
        assert_eq!(version_id("Kv", 0x4e10_e23b, 2), 0x6dbf_891a);
    }
}
