// What both ends share.

#ifndef FARCALL_UCX_ECHO_H
#define FARCALL_UCX_ECHO_H

#include <stdint.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

enum { REQUEST = 1, REPLY = 2 };

// Copied from request to reply.
struct header {
    uint32_t call;
};

// A call at either end.
struct call {
    struct header header;
    ucp_ep_h reply_to;  // server
    void *held;         // server: the request's bytes, if UCX lends them
    char *buffer;       // for what comes by rendezvous, and for answers
    size_t length;
    uint64_t started;   // client; 0: not timed
    int sending;        // client: the request's header is still needed
    int answered;       // client
};

extern ucp_worker_h worker;
extern struct call *calls;
extern uint32_t *free_calls;
extern uint32_t free_count, call_count;
// Bytes of each call, and how many the client keeps outstanding.
extern size_t size;
extern uint32_t window;
extern char *pattern;
// The client copies answers to memory of its own before their time ends, as those that come by rendezvous do anyway.
extern int keeps_answers;

// Ends the program.
void fail(const char *what, ucs_status_t status);
// Ends the program unless the status is good.
void check(const char *what, ucs_status_t status);
// Returns memory whose pages have been touched.
void *allocate(size_t bytes);
struct call *take_call(void);
void free_call(struct call *call);
// Pulls what was sent by rendezvous into the call's buffer.
void pull(struct call *call, void *descriptor, ucp_am_recv_data_nbx_callback_t then);

ucs_status_t on_request(void *arg, const void *header, size_t header_length, void *data,
                        size_t length, const ucp_am_recv_param_t *how);
ucs_status_t on_reply(void *arg, const void *header, size_t header_length, void *data,
                      size_t length, const ucp_am_recv_param_t *how);
// Serves until the standard input ends.
void serve(void);
// Does what the standard input says until it ends.
void obey(const char *address);

#endif
