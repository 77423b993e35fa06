//! A user's text in an error: what is shown of it, and what may have been meant.

use std::fmt;

use strsim::osa_distance;

/// The longest text that is shown whole, in characters.
const MOST_SHOWN: usize = 64;

/// The text, printable and short.
pub(super) fn shown(text: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let mut rest = text.chars();
        for character in rest.by_ref().take(MOST_SHOWN) {
            match character {
                '\'' | '"' => write!(f, "{character}")?,
                other => write!(f, "{}", other.escape_debug())?,
            }
        }
        if rest.next().is_some() {
            write!(f, "... ({} bytes)", text.len())?;
        }
        Ok(())
    })
}

/// The known word that is nearest to the given one, as the end of an error's sentence; nothing if none is near.
pub(super) fn meant<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    match nearest(given, known) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    }
}

fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let given: String = given.to_lowercase().chars().take(MOST_SHOWN).collect();
    let letters = given.chars().count();
    // One mistake in three letters, and something that is right.
    let most = (letters / 3).max(1).min(letters.saturating_sub(1));
    let distances = known.into_iter().map(|word| (osa_distance(&given, word), word));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_counted() {
        for (given, word, mistakes) in [
            ("window", "window", 0),
            ("widow", "window", 1),
            ("windwo", "window", 1),
            ("", "ab", 2),
            ("slots", "slot", 1),
        ] {
            assert_eq!(osa_distance(given, word), mistakes, "{given}");
        }
    }

    #[test]
    fn the_nearest_word_is_meant_if_it_is_near() {
        let known = ["window", "slot", "max_message", "memory"];
        for (given, wanted) in [
            ("widow", Some("window")),
            ("Windwo", Some("window")),
            ("max-message", Some("max_message")),
            ("maxmesage", Some("max_message")),
            ("slots", Some("slot")),
            ("colour", None),
            ("s", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), wanted, "{given}");
        }
    }

    #[test]
    fn what_is_shown_is_short_and_printable() {
        assert_eq!(shown("ein Gerät's \"name\"").to_string(), "ein Gerät's \"name\"");
        assert_eq!(shown("a\u{1b}[31m\n").to_string(), "a\\u{1b}[31m\\n");
        let long = shown(&"x".repeat(5_000)).to_string();
        assert!(long.len() < 100 && long.ends_with("... (5000 bytes)"), "{long}");
    }
}
