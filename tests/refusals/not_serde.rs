use bytes::Bytes;

#[derive(farcall::Shape)]
struct Row {
    id: u64,
}

#[derive(serde::Serialize, farcall::Shape)]
struct OneWay;

#[farcall::service]
trait Store {
    fn put(&self, key: &[u8], row: Row);
    async fn get(&self, id: u64) -> Result<Option<(Bytes, Row)>, OneWay>;
}

fn main() {}
