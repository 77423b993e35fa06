//! Serves the files of a folder to a browser on this machine, and takes what the browser reports.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// How long a browser may take for a request once it has connected: it opens connections ahead of their use.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest report.
const MAX_REPORT_BYTES: u64 = 1 << 20;

/// Where the browser finds the files, and what it reports.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) reports: Receiver<String>,
}

/// Serves `folder`, and at `/look` the page `look`. A report is what is posted. Serves until the process ends.
pub(super) fn serve(folder: &Path, look: String) -> Result<Server> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port for the browser")?;
    let address = listener.local_addr()?;
    let (report, reports) = channel();
    let folder = folder.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, look, report) = (folder.clone(), look.clone(), report.clone());
            // A connection that the browser closes early is of no interest.
            thread::spawn(move || drop(answer(stream, &folder, &look, &report)));
        }
    });
    Ok(Server { address, reports })
}

fn answer(stream: TcpStream, folder: &Path, look: &str, report: &Sender<String>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(&stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let header = header.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse::<u64>()?.min(MAX_REPORT_BYTES);
        }
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method == "POST" {
        let mut text = String::new();
        reader.take(length).read_to_string(&mut text)?;
        report.send(text)?;
        return respond(&stream, "200 OK", "text/plain", b"");
    }
    if path == "/look" {
        return respond(&stream, "200 OK", "text/html", look.as_bytes());
    }
    match file(folder, path).map(|file| (kind(&file), fs::read(file))) {
        Some((kind, Ok(bytes))) => respond(&stream, "200 OK", kind, &bytes),
        _ => respond(&stream, "404 Not Found", "text/plain", b""),
    }
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &[u8]) -> Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(())
}

/// The file of a path, which does not leave the folder.
fn file(folder: &Path, path: &str) -> Option<PathBuf> {
    let path = path.split(['?', '#']).next()?.trim_start_matches('/');
    (!path.split('/').any(|part| part == "..")).then(|| folder.join(path))
}

fn kind(file: &Path) -> &'static str {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_does_not_leave_the_folder() {
        let folder = Path::new("/book");
        assert_eq!(file(folder, "/css/a.css?x"), Some("/book/css/a.css".into()));
        assert_eq!(file(folder, "/../etc/passwd"), None);
    }
}
