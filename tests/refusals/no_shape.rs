use farcall::Shape;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Row {
    id: u64,
}

#[derive(Serialize, Deserialize, Shape)]
struct Page {
    rows: Vec<Row>,
}

#[farcall::service]
trait Store {
    fn put(&self, key: &[u8], row: Row);
    fn get(&self, id: u64) -> Option<Page>;
}

fn main() {}
