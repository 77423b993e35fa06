use bolero::check;

use super::{Compatibility, Lock, Verdict};

const TITLE: &str = "# farcall lock 1: what the clients of a service rely on";

fn lock(body: &str) -> Lock {
    Lock::parse(&format!("{TITLE}\n\n{body}")).unwrap()
}

const OLD: &str = "service Bank
reserved 0x00000063 audit

method pay 0x00000001 shape 0x00000000000000a1
  payment: Payment
  -> ()

method total 0x00000002 shape 0x00000000000000a2
  -> u64

type Payment
  from: u64
  to: u64
";

/// The verdicts and the text of what changes if the old lock file has these replacements.
fn compare(replacements: &[(&str, &str)]) -> (Vec<Verdict>, String) {
    let mut new = OLD.to_owned();
    for (from, to) in replacements {
        assert!(new.contains(from), "{from}");
        new = new.replace(from, to);
    }
    let compatibility = Compatibility::of(&lock(OLD), &lock(&new));
    let verdicts = compatibility.changes().iter().map(|change| change.verdict).collect();
    (verdicts, compatibility.to_string())
}

const TOTAL: &str = "method total 0x00000002 shape 0x00000000000000a2\n  -> u64\n";

#[test]
fn nothing_changed() {
    let (verdicts, text) = compare(&[]);
    assert_eq!(
        (verdicts, text.as_str()),
        (vec![], "nothing changed that client and server compare")
    );
}

#[test]
fn swapped_fields_break_both_and_are_shown() {
    let swapped = [
        ("00000000000000a1", "00000000000000ff"),
        ("  from: u64\n  to: u64", "  to: u64\n  from: u64"),
    ];
    let (verdicts, text) = compare(&swapped);
    assert_eq!(verdicts, [Verdict::Both]);
    assert_eq!(
        text,
        "pay has another shape (old clients fail at new servers, and new clients at old servers)\n  \
         - Payment { from: u64, to: u64 }\n  + Payment { to: u64, from: u64 }"
    );
}

#[test]
fn a_new_method_breaks_new_clients_at_old_servers_only() {
    let sum = format!("{TOTAL}\nmethod sum 0x00000003 shape 0x00000000000000a3\n");
    let (verdicts, text) = compare(&[(TOTAL, &sum)]);
    assert_eq!(verdicts, [Verdict::NewClients]);
    assert_eq!(text, "sum is added (new clients fail at old servers)");
}

#[test]
fn a_removed_method_breaks_old_clients_and_should_be_reserved() {
    let (verdicts, text) = compare(&[(TOTAL, "")]);
    assert_eq!(verdicts, [Verdict::OldClients]);
    assert!(text.contains("reserved = [\"total\"]"), "{text}");
    let reserved = "reserved 0x00000063 audit\nreserved 0x00000002 total\n";
    let (verdicts, text) = compare(&[(TOTAL, ""), ("reserved 0x00000063 audit\n", reserved)]);
    assert_eq!(verdicts, [Verdict::OldClients]);
    assert_eq!(text, "total is removed (old clients fail at new servers)");
}

#[test]
fn a_reserved_id_that_is_used_again_breaks_both() {
    let audit = format!("{TOTAL}\nmethod audit 0x00000063 shape 0x00000000000000a3\n");
    let (verdicts, text) = compare(&[(TOTAL, &audit), ("reserved 0x00000063 audit\n", "")]);
    assert_eq!(verdicts, [Verdict::Both]);
    assert!(text.contains("audit has the id 0x00000063, which is reserved"), "{text}");
}

#[test]
fn another_name_with_the_same_id_and_shape_is_harmless() {
    let (verdicts, _) = compare(&[("method total", "method sum")]);
    assert_eq!(verdicts, [Verdict::Harmless]);
    let (verdicts, _) = compare(&[("00000000000000a2", "00000000000000a2 idempotent")]);
    assert_eq!(verdicts, [Verdict::Harmless]);
    let (verdicts, _) = compare(&[("reserved 0x00000063 audit\n", "")]);
    assert_eq!(verdicts, [Verdict::Harmless]);
}

const GROWN: &str = "service Bank

method list 0x00000001 shape 0x00000000000000a1
  options: Options
  -> Event

type Event may grow
  0 Opened
  1 Closed since 2

type Options may grow
  limit: u32
  prefix: str since 2
";

/// The verdict and the text of a replacement in a service with types that may grow.
fn grow(from: &str, to: &str) -> (Vec<Verdict>, String) {
    assert!(GROWN.contains(from), "{from}");
    let compatibility = Compatibility::of(&lock(GROWN), &lock(&GROWN.replace(from, to)));
    let verdicts = compatibility.changes().iter().map(|change| change.verdict).collect();
    (verdicts, compatibility.to_string())
}

#[test]
fn growing_at_the_end_is_harmless() {
    let prefix = "  prefix: str since 2\n";
    let (verdicts, text) = grow(prefix, "  prefix: str since 2\n  reverse: bool since 3\n");
    assert_eq!(verdicts, [Verdict::Harmless]);
    assert_eq!(text, "Options has grown (harmless)\n  + reverse: bool since 3");
    let closed = "  1 Closed since 2\n";
    assert_eq!(grow(closed, "  1 Closed since 2\n  2 Lost since 3\n").0, [Verdict::Harmless]);
    assert_eq!(grow("method list", "method list").0, []);
}

#[test]
fn a_growing_type_that_loses_or_changes_what_it_got_breaks_both() {
    for (from, to) in [
        ("  prefix: str since 2\n", ""),
        ("  prefix: str since 2\n", "  prefix: bytes since 2\n"),
        ("  prefix: str since 2\n", "  reverse: bool since 2\n  prefix: str since 3\n"),
        ("  1 Closed since 2\n", "  1 Lost since 2\n  2 Closed since 2\n"),
    ] {
        let (verdicts, text) = grow(from, to);
        assert_eq!(verdicts, [Verdict::Both], "{to}");
        assert!(text.contains("client and server do not notice"), "{text}");
    }
    let (verdicts, text) = grow("type Options may grow", "type Choices may grow");
    assert_eq!(verdicts, [Verdict::Both]);
    assert!(text.contains("no type has its name now"), "{text}");
}

#[test]
fn a_growing_type_of_changed_methods_is_not_compared() {
    let (verdicts, text) =
        grow("00000000000000a1\n  options: Options", "00000000000000a2\n  options: u8");
    assert_eq!(verdicts, [Verdict::Both]);
    assert!(text.starts_with("list has another shape"), "{text}");
}

#[test]
fn another_service_has_nothing_in_common() {
    assert_eq!(compare(&[("service Bank", "service Shop")]).0, [Verdict::Both]);
}

#[test]
fn a_text_that_is_no_lock_file_is_refused_with_its_line() {
    let line = |text: &str| Lock::parse(text).unwrap_err().line;
    assert_eq!(line(""), 1);
    assert_eq!(line(TITLE), 1, "no service");
    for (body, at) in [
        ("service A\nservice B", 3),
        ("service A\n  below nothing", 3),
        ("service A\nmethod get 0x1 shape 0x0", 3),
        ("service A\nmethod get 0x00000001 shape 0x0000000000000000 fast", 3),
        ("service A\nreserved get", 3),
        ("service A\nsomething", 3),
    ] {
        assert_eq!(line(&format!("{TITLE}\n{body}")), at, "{body}");
    }
}

mod fuzz {
    use super::*;

    #[test]
    fn any_text_is_a_lock_file_or_an_error() {
        check!().with_max_len(512).for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let _ = Lock::parse(&text);
            if let Ok(lock) = Lock::parse(&format!("{TITLE}\nservice A\n{text}")) {
                let old = Compatibility::of(&super::lock(OLD), &lock);
                assert!(
                    Compatibility::of(&lock, &lock).changes().is_empty()
                        || !old.changes().is_empty()
                );
            }
        });
    }

    #[test]
    fn the_corpus_has_lock_files() {
        let target = "lock::tests::fuzz::any_text_is_a_lock_file_or_an_error";
        let whole = format!("{TITLE}\n\n{OLD}");
        assert!(Lock::parse(&whole).is_ok());
        let methods = TOTAL.to_owned();
        let files = [("whole", whole), ("method", methods)];
        let files = files.map(|(name, text)| (name.to_owned(), text.into_bytes()));
        crate::support::corpus::is_kept("src/lock", target, files);
    }
}
