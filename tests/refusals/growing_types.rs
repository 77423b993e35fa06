use farcall::{Grow, Shape};

#[derive(Grow)]
struct Tuple(u32, u32);

#[derive(Grow)]
struct Generic<T> {
    value: T,
}

#[derive(Grow)]
struct NotLast {
    #[rpc(since = 2)]
    sorted: bool,
    limit: u32,
}

#[derive(Grow)]
struct Always {
    #[rpc(default = 5)]
    limit: u32,
}

#[derive(Grow)]
struct First {
    #[rpc(since = 1)]
    limit: u32,
}

#[derive(Grow)]
enum WithoutUnknown {
    Opened,
}

#[derive(Grow)]
enum UnknownFirst {
    #[rpc(unknown)]
    Unknown,
    Opened,
}

#[derive(Grow)]
enum GrowingVariant {
    Opened {
        at: u64,
        #[rpc(since = 2)]
        by: u64,
    },
    #[rpc(unknown)]
    Unknown,
}

#[derive(Grow)]
#[serde(from = "u32", into = "u32")]
struct Converted {
    value: u32,
}

#[derive(Grow)]
#[rpc(opaque = "Named 1")]
struct Named {
    value: u32,
}

#[derive(Shape)]
struct NotGrowing {
    #[rpc(since = 2)]
    value: u32,
}

#[derive(Shape)]
enum NotGrowingEither {
    #[rpc(unknown)]
    Unknown,
}

fn main() {}
