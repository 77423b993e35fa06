use farcall::Server;
use farcall::ping::PingClient;

fn main() {
    PingClient::connect(7471);
    PingClient::connect(std::path::Path::new("/run/kv"));
    Server::builder().listen(("10.0.0.1", 7471));
}
