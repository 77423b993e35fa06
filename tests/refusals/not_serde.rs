use bytes::Bytes;

struct Row {
    id: u64,
}

#[derive(serde::Serialize)]
struct OneWay;

#[farcall::service]
trait Store {
    fn put(&self, key: &[u8], row: Row);
    async fn get(&self, id: u64) -> Result<Option<(Bytes, Row)>, OneWay>;
}

fn main() {}
