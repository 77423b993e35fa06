//! A user's text in an error: what is shown of it, and what may have been meant.

use std::fmt;

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
    let given: Vec<char> = given.to_lowercase().chars().take(MOST_SHOWN).collect();
    // One mistake in three letters, and something that is right.
    let most = (given.len() / 3).max(1).min(given.len().saturating_sub(1));
    let distances = known.into_iter().map(|word| (distance(&given, word), word));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, word)| word)
}

/// Letters to add, leave out, replace or exchange with their neighbours (Damerau's distance, of neighbours that are not changed twice).
fn distance(given: &[char], word: &str) -> usize {
    let word: Vec<char> = word.chars().collect();
    let mut rows = vec![(0..=word.len()).collect::<Vec<_>>()];
    for (i, from) in given.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in word.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(from != to);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == word[j - 1] && given[i - 1] == *to {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[given.len()][word.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_counted() {
        let count = |given: &str, word| distance(&given.chars().collect::<Vec<_>>(), word);
        for (given, word, mistakes) in [
            ("window", "window", 0),
            ("widow", "window", 1),
            ("windwo", "window", 1),
            ("", "ab", 2),
            ("slots", "slot", 1),
        ] {
            assert_eq!(count(given, word), mistakes, "{given}");
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
