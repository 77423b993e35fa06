//! The two clients: one for executors and blocking callers, one for a thread that polls.

use proc_macro2::TokenStream;
use quote::quote;

use super::{calling, description, linked, method_type, output, parameters};
use crate::model::{Method, Service};

/// The client whose calls are futures.
pub(super) fn channel(service: &Service) -> TokenStream {
    let Service { private, visibility, ident, .. } = service;
    let client = service.client();
    let constants = description::constants(service);
    let doc = format!(
        "Calls a server of [`{ident}`] from any thread and any executor.\n\n\
         Each method returns a call: await it, or block the thread with `wait`. Dropping a call cancels it. \
         Clones share the connection."
    );
    let connect_doc = format!(
        "Connects to a server of [`{ident}`] at this address, such as `\"shm://kv\"`: await it, or block the thread with `wait`. \
         Before that, its methods set options."
    );
    // If the service has a method of that name, the channel is available through `ServiceClient` only.
    let channel = (!service.declares("channel")).then(|| {
        quote! {
            /// The channel, for its metrics, to close it, or for a client with another timeout.
            pub fn channel(&self) -> &#private::Channel {
                &self.channel
            }
        }
    });
    let on_doc = format!(
        "A client over the connection of another one, whose channel this is. It must have been made for `{ident}`, too: with \
         `also`."
    );
    // As with `channel`.
    let on = (!service.declares("on")).then(|| {
        quote! {
            #[doc = #on_doc]
            ///
            /// # Errors
            /// `ConnectError::NotCarried`: it was not.
            pub fn on(channel: &#private::Channel) -> #private::Result<Self, #private::ConnectError> {
                <Self as #private::ServiceClient>::on(channel)
            }
        }
    });
    let methods = service.methods.iter().map(|method| {
        let Method { ident, attributes, .. } = method;
        let doc = undocumented(service, method);
        let parameters = parameters(method);
        let (ty, output) = (method_type(service, method), output(service, method));
        let call = calling(service, method, quote!(self.channel.call::<#ty, _>));
        quote! {
            #(#attributes)*
            #doc
            #[inline]
            pub fn #ident(&self, #parameters) -> #private::Call<#output> {
                #call
            }
        }
    });
    quote! {
        #[doc = #doc]
        #visibility struct #client {
            channel: #private::Channel,
        }

        #[allow(clippy::all, clippy::pedantic)]
        impl #client {
            #[doc = #connect_doc]
            pub fn connect(address: impl #private::ToAddress) -> #private::Connecting<Self> {
                #private::connect(address)
            }

            #on
            #(#methods)*
            #channel
        }

        #[automatically_derived]
        impl #private::ServiceClient for #client {
            #constants

            fn from_channel(channel: #private::Channel) -> Self {
                Self { channel }
            }

            fn channel(&self) -> &#private::Channel {
                &self.channel
            }
        }

        #[automatically_derived]
        impl #private::Clone for #client {
            fn clone(&self) -> Self {
                Self { channel: #private::Clone::clone(&self.channel) }
            }
        }

        #[automatically_derived]
        impl #private::fmt::Debug for #client {
            fn fmt(&self, __f: &mut #private::fmt::Formatter<'_>) -> #private::fmt::Result {
                __f.debug_struct(::core::stringify!(#client)).finish_non_exhaustive()
            }
        }
    }
}

/// The client of a thread that owns its connection.
pub(super) fn poll(service: &Service) -> TokenStream {
    let Service { private, visibility, ident, .. } = service;
    let (client, described) = (service.poll_client(), service.client());
    let doc = format!(
        "Calls a server of [`{ident}`] from a thread that polls its own connection.\n\n\
         It has each method twice: as a call that waits until it has ended, and as `start_...`, which leaves the call \
         outstanding while others are started. `poll` drives them, and `take` returns the result of one that has ended."
    );
    let connect_doc = format!(
        "Connects to a server of [`{ident}`] at this address, such as `\"shm://kv\"`: `wait` does it. Before that, its methods \
         set options."
    );
    let methods = service.methods.iter().map(|method| poll_methods(service, method));
    // If the service has a method of that name, these are available through `PollClient` only.
    let poll = (!service.declares("poll")).then(|| {
        quote! {
            /// Drives all outstanding calls, once, without waiting.
            #[inline]
            pub fn poll(&mut self) -> #private::Progress {
                self.connection.poll()
            }
        }
    });
    let take = (!service.declares("take")).then(|| {
        quote! {
            /// The result of a started call, once it has ended; `None` before that, and after it was taken.
            #[inline]
            pub fn take<__R: 'static>(&mut self, call: &mut #private::PendingCall<__R>) -> #private::Option<__R> {
                self.connection.take(call)
            }
        }
    });
    let connection = (!service.declares("connection")).then(|| {
        quote! {
            /// The connection, to wait at it and to set the timeout of its calls.
            pub fn connection(&mut self) -> &mut #private::Connection {
                &mut self.connection
            }
        }
    });
    quote! {
        #[doc = #doc]
        #visibility struct #client {
            connection: #private::Connection,
        }

        #[allow(clippy::all, clippy::pedantic)]
        impl #client {
            #[doc = #connect_doc]
            pub fn connect(address: impl #private::ToAddress) -> #private::PollConnecting<Self> {
                #private::connect_poll(address)
            }

            #(#methods)*
            #poll
            #take
            #connection
        }

        #[automatically_derived]
        impl #private::PollClient for #client {
            const DESCRIPTION: &'static #private::ServiceDescription =
                <#described as #private::ServiceClient>::DESCRIPTION;

            fn from_connection(connection: #private::Connection) -> Self {
                Self { connection }
            }

            fn into_connection(self) -> #private::Connection {
                self.connection
            }

            fn connection(&mut self) -> &mut #private::Connection {
                &mut self.connection
            }
        }

        #[automatically_derived]
        impl #private::fmt::Debug for #client {
            fn fmt(&self, __f: &mut #private::fmt::Formatter<'_>) -> #private::fmt::Result {
                __f.debug_struct(::core::stringify!(#client)).finish_non_exhaustive()
            }
        }
    }
}

fn poll_methods(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    let Method { ident, attributes, .. } = method;
    let doc = undocumented(service, method);
    let parameters = parameters(method);
    let (ty, output) = (method_type(service, method), output(service, method));
    let call = calling(service, method, quote!(self.connection.call::<#ty, _>));
    let start = calling(service, method, quote!(self.connection.start::<#ty, _>));
    let starter = method.starter();
    let start_doc = format!(
        "Starts a call of {} and leaves it outstanding; `take` returns its result.",
        linked(service, method)
    );
    let deprecated = attributes.iter().filter(|attribute| attribute.path().is_ident("deprecated"));
    quote! {
        #(#attributes)*
        #doc
        #[inline]
        pub fn #ident(&mut self, #parameters) -> #output {
            #call
        }

        #[doc = #start_doc]
        #(#deprecated)*
        #[inline]
        pub fn #starter(
            &mut self,
            #parameters
        ) -> #private::Result<#private::PendingCall<#output>, #private::RpcError> {
            #start
        }
    }
}

/// A line of documentation for a method that has none.
fn undocumented(service: &Service, method: &Method) -> Option<TokenStream> {
    let documented = method.attributes.iter().any(|attribute| attribute.path().is_ident("doc"));
    (!documented).then(|| {
        let doc = format!("Calls {}.", linked(service, method));
        quote!(#[doc = #doc])
    })
}
