//! The service attribute of farcall: a trait in, a typed client and a dispatcher out.
//!
//! Use it as `farcall::service`; what it makes names the crate `farcall` for everything it needs.
#![forbid(unsafe_code)]

mod emit;
mod forms;
mod hash;
mod model;
mod options;
mod refuse;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemTrait;

/// Makes a service of a trait.
///
/// ```ignore
/// #[farcall::service]
/// pub trait Kv {
///     /// The value of a key, if it has one.
///     fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
///     /// All keys that begin so.
///     async fn scan(&self, prefix: Bytes) -> Result<Vec<Bytes>, KvError>;
/// }
/// ```
///
/// Beside the trait, which a server implements, this gives
///
/// - `KvServer<S>`, which serves an implementation `S` of it: `KvServer::new(store)`;
/// - `KvClient`, whose methods are futures for any executor, and can also block the thread: `Clone`, `Send`, `Sync`;
/// - `KvPollClient`, for a thread that owns its connection and spins: each method once as a call that waits, and once
///   as `start_...`, to keep many calls outstanding.
///
/// # Methods
///
/// A method takes `&self` and up to eight arguments. A plain `fn` runs to completion where its request arrived and may
/// borrow its arguments from there (`&[u8]`, `&str`, or a type of your own with a lifetime); `&T` of another type works
/// too, and `&[T]`. An `async fn` may wait, so it owns its arguments; it runs on the server thread's own executor, and its future
/// need not be `Send`. A method that returns `Result<T, E>` gives its caller `Result<T, CallError<E>>`, any other
/// `Result<T, RpcError>`.
///
/// All types need serde's `Serialize` and `Deserialize`. Byte strings (`&[u8]`, `Vec<u8>`, `Bytes`, `ByteBuf`, `[u8; N]`, also
/// within `Option`, `Vec` and tuples) are recognised by these names and moved whole, without serde; under an alias they
/// work too, one byte at a time.
///
/// # What names a method on the wire
///
/// An id: a hash of the service's and the method's name, so methods can be moved about. `#[rpc(id = 7)]` on a method sets it, which
/// keeps an old id over a rename. A fingerprint of all signatures is compared when a client connects; doc comments, parameter names
/// and the order of methods do not count.
///
/// # Options
///
/// On the trait: `#[farcall::service(name = "kv")]` names the service for the handshake and the ids (the trait's name otherwise);
/// `#[farcall::service(crate = path)]` says where the crate `farcall` is, if it was renamed.
/// On a method: `#[rpc(id = 7)]`, see above, and `#[rpc(idempotent)]`.
///
/// # Methods that may run more than once
///
/// A handler runs at most once per call, whatever the network loses or doubles. `#[rpc(idempotent)]` gives that up for one method:
/// one call of it may run again, also beside calls that came later, and even after its caller has had the answer. Mark what
/// only reads, or what a later call cannot be undone by: "raise the version to 7", not "set the value to 7", which would be set
/// again over an 8 that came in between.
/// Over `backend=datagram` the server then remembers neither the call nor its answer: where that is lost, the call runs again.
/// Only while it waits in an `async fn` its place in the client's window is taken, so that no repetition starts it once more.
/// Backends that lose nothing run it once all the same.
///
/// What an error says about such a call counts for its last run only: `may_have_run() == false` is no promise here, and whoever
/// calls again need not ask.
#[proc_macro_attribute]
pub fn service(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(options.into(), item.into()).into()
}

fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut input: ItemTrait = match syn::parse2(item.clone()) {
        Ok(input) => input,
        Err(error) => {
            let error = refuse::not_a_trait(&item).unwrap_or(error).into_compile_error();
            return quote!(#error #item);
        }
    };
    let model = options::of_service(options, &input)
        .and_then(|options| model::Service::new(options, &input));
    options::strip(&mut input);
    match model {
        Ok(model) => emit::all(&model, &input),
        // The trait goes on as it is, so that what uses it does not fail as well.
        Err(error) => {
            let error = error.into_compile_error();
            let original = input.into_token_stream();
            quote!(#original #error)
        }
    }
}
