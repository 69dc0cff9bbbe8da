/*
 * rowmill: embedding lookups, served by a dataplane (rowmilld) from memory that this process shares with it.
 *
 * This file is made of ffi/capi/src by cbindgen; change that.
 *
 * STATUSES. Functions return a rowmill_status: ROWMILL_OK (0), below 0 what this library found, above 0 what the dataplane said.
 * rowmill_error_text() has a sentence about the thread's last call that failed. A wrong argument is refused with
 * ROWMILL_INVALID, and nothing has changed then. No panic or exception leaves a function, and none ends the process.
 *
 * THREADS. All functions may be called by all threads at the same time, with the same handles. A thread that waits sleeps without
 * holding the others up; rowmill_connect(), rowmill_tables(), rowmill_bind(), rowmill_region_create(), rowmill_region_register(),
 * rowmill_region_free(), rowmill_gpu_open(), rowmill_gpu_register() and rowmill_gpu_unregister() ask the dataplane, and hold up other calls with the same client until it has answered. An answer
 * is taken by one thread. Closing a client while others are in calls with it is fine. None of the functions may be called in a
 * signal handler.
 *
 * FORKS. A child of the process has no part in its connections: all calls there with handles from before are refused with
 * ROWMILL_FORKED and do the parent no harm, and it may connect anew. Regions are mapped in the child too, but what is in them is
 * the parent's.
 *
 * MEMORY. Handles are numbers, not addresses, and are looked up: one that was closed or freed, or is none, is refused. A schema or
 * region may be used with the client that made it, and no other. Where an answer is to be placed is the dataplane's from
 * rowmill_submit() until the answer is taken, whatever a wait or a cancel says; it is the caller's from then until it is named in
 * another rowmill_submit(). Batches and their arrays, texts and options are copied: they are the caller's again when the call
 * returns, and may be written by other threads meanwhile (what is sent is then undefined). Pointers may be NULL only where it is said;
 * those that are not NULL have to be good.
 *
 * GPUS. rowmill_submit_on_stream() places an answer in memory of a GPU (CUDA), in the order of a stream and without a wait. CUDA's driver is
 * opened at run time, by rowmill_gpu_open(). While a stream waits for an answer, calls that free a GPU's memory wait, too.
 *
 * VERSIONS. Structs that begin with `size` grow at their ends. Set the size to sizeof, and all that is not used to 0, as
 * `rowmill_options options = { .size = sizeof options };` does. Symbols are versioned; the soname is librowmill.so.0.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#ifndef ROWMILL_H
#define ROWMILL_H

#include <stddef.h>
#include <stdint.h>

// The version that this header belongs to: major in bits 31 to 16, minor in 15 to 8, patch in 7 to 0. Compare with
// rowmill_version(), which is that of the library.
#define ROWMILL_VERSION 256

// Bytes of a name, its final 0 included.
#define ROWMILL_NAME_BYTES 136

// Ask for raw f32 sums: means are then not divided. A flag of rowmill_request.
#define ROWMILL_PARTIALS 1

// Make it an error where answers would have to be copied to the memory. A flag of rowmill_region_options.
#define ROWMILL_NO_COPIES 1

// Make it an error where no NIC can write to the GPU's memory, instead of copying. A flag of rowmill_gpu_options.
#define ROWMILL_NO_STAGING 1

// What functions return, and what becomes of a request. Below 0: found by this library. Above 0: said by the dataplane.
// New ones may be added.
typedef enum rowmill_status {
    // Done.
    ROWMILL_OK = 0,
    // An argument is wrong: nothing was sent, nothing has changed.
    ROWMILL_INVALID = -1,
    // There is no connection to be had.
    ROWMILL_CONNECT = -2,
    // The connection has ended: connect again.
    ROWMILL_CLOSED = -3,
    // The client was connected by the process that this one was forked from: connect again in this one.
    ROWMILL_FORKED = -4,
    // All slots or all room for ids are in use: take answers, then try again.
    ROWMILL_AGAIN = -5,
    // The time was over before the answer came. What was waited for goes on: a request is still in flight; what a call that asks
    // the dataplane (rowmill_bind() and others) is answered later is given back.
    ROWMILL_TIMEOUT = -6,
    // A call to a GPU's driver has failed, or a stream went on without its answer.
    ROWMILL_DEVICE = -7,
    // The operating system or the dataplane did what it should not.
    ROWMILL_SYSTEM = -8,
    // A mistake of this library.
    ROWMILL_INTERNAL = -9,
    // The worker has no free slot: try again after a pause.
    ROWMILL_BUSY = 1,
    // The deadline passed before the work was done.
    ROWMILL_EXPIRED = 2,
    // Cancelled by rowmill_cancel().
    ROWMILL_CANCELLED = 3,
    // The dataplane is shutting down: connect to another one.
    ROWMILL_DRAINING = 4,
    // The wanted generation is not there (yet): take the newest, or try again.
    ROWMILL_RETRY = 5,
    // The message is malformed.
    ROWMILL_MALFORMED = 16,
    // The protocol's version is not supported.
    ROWMILL_UNSUPPORTED_VERSION = 17,
    // The operation, flag or type is not supported.
    ROWMILL_UNSUPPORTED = 18,
    // The request exceeds a limit of the dataplane.
    ROWMILL_TOO_LARGE = 19,
    // The schema is not bound on this connection.
    ROWMILL_UNKNOWN_SCHEMA = 32,
    // The model has no table of that name.
    ROWMILL_UNKNOWN_TABLE = 33,
    // The request's features are not those of the schema.
    ROWMILL_UNKNOWN_FEATURE = 34,
    // Two outputs of the schema overlap.
    ROWMILL_OVERLAPPING_OUTPUTS = 35,
    // The lengths do not add up to the number of ids.
    ROWMILL_LENGTHS_MISMATCH = 36,
    // An id is not in the table.
    ROWMILL_ID_OUT_OF_RANGE = 37,
    // An id is negative.
    ROWMILL_ID_NEGATIVE = 38,
    // Weights are missing, or sent for features that take none.
    ROWMILL_WEIGHTS_MISMATCH = 39,
    // An id is not among those of the hashed table.
    ROWMILL_UNKNOWN_ID = 40,
    // A feature that is not pooled has more ids than its block holds.
    ROWMILL_BLOCK_OVERFLOW = 41,
    // The region is not registered on this connection.
    ROWMILL_UNKNOWN_REGION = 48,
    // The target does not lie inside its region.
    ROWMILL_TARGET_OUT_OF_REGION = 49,
    // The target is misaligned.
    ROWMILL_TARGET_MISALIGNED = 50,
    // A segment does not lie inside its region.
    ROWMILL_SEGMENT_OUT_OF_REGION = 51,
    // The region's memory is gone.
    ROWMILL_REGION_LOST = 52,
    // The region is not sealed against shrinking and growing.
    ROWMILL_REGION_UNSEALED = 53,
    // The region cannot be mapped.
    ROWMILL_REGION_REFUSED = 54,
    // A limit of the connection or the dataplane is reached.
    ROWMILL_LIMIT_REACHED = 55,
    // The region was not registered for this.
    ROWMILL_REGION_FORBIDDEN = 56,
    // The table is unavailable.
    ROWMILL_UNAVAILABLE = 64,
    // A mistake of the dataplane.
    ROWMILL_SERVER_INTERNAL = 65,
    // What the dataplane sends does not arrive.
    ROWMILL_TRANSPORT_FAILED = 66,
    // A row could not be fetched from where its table lies: try again, unless it is damaged there.
    ROWMILL_ROW_UNAVAILABLE = 67,
} rowmill_status;

// What becomes of a bag's rows: the pooling of a rowmill_feature.
typedef enum rowmill_pooling {
    // The sum of the rows.
    ROWMILL_SUM = 0,
    // The sum divided by the bag's length.
    ROWMILL_MEAN = 1,
    // The sum of each row times its weight.
    ROWMILL_WEIGHTED_SUM = 2,
    // The weighted sum divided by the sum of the weights.
    ROWMILL_WEIGHTED_MEAN = 3,
    // The greatest value of each dimension.
    ROWMILL_MAX = 4,
    // The rows themselves, one for each id, in a block of their own.
    ROWMILL_NO_POOLING = 5,
} rowmill_pooling;

// The type of a vector's elements: the output of a rowmill_feature.
typedef enum rowmill_output {
    // 32-bit floats.
    ROWMILL_F32 = 0,
    // IEEE 754 binary16.
    ROWMILL_F16 = 1,
    // bfloat16.
    ROWMILL_BF16 = 2,
} rowmill_output;

// How rowmill_wait() waits: a choice of rowmill_options.
typedef enum rowmill_waiting {
    // Polls for a while (about 0.1 ms), then lets others run, then sleeps.
    ROWMILL_WAIT_BLOCK = 0,
    // Polls all the time: the lowest latency, for a thread that has a core to itself.
    ROWMILL_WAIT_POLL = 1,
    // Sleeps at once: the least processor time.
    ROWMILL_WAIT_SLEEP = 2,
} rowmill_waiting;

// How answers come to the memory of a region: the way of a rowmill_region_info.
typedef enum rowmill_way {
    // The dataplane, or its NIC, writes them there.
    ROWMILL_WAY_DIRECT = 0,
    // The dataplane writes them to memory of this library, from where rowmill_wait() and rowmill_poll() copy them.
    ROWMILL_WAY_COPIED = 1,
} rowmill_way;

// How the ids of a rowmill_batch lie in memory.
typedef enum rowmill_batch_layout {
    // Each feature has a part of its own, in the schema's order.
    ROWMILL_BY_FEATURE = 0,
    // There is one part with the ids of all features (columns), as in a KeyedJaggedTensor: first all bags of column 0, then
    // those of column 1 and so on.
    ROWMILL_TENSOR = 1,
} rowmill_batch_layout;

// A connection. All threads may use it.
typedef struct rowmill_client rowmill_client;

// A GPU in whose memory answers are placed. All threads may use it.
typedef struct rowmill_gpu rowmill_gpu;

// Memory that answers are placed in. All threads may use it.
typedef struct rowmill_region rowmill_region;

// The features that requests have, and where their vectors lie in answers. All threads may use it.
typedef struct rowmill_schema rowmill_schema;

// Choices for a connection. What is 0 or NULL has its default.
typedef struct rowmill_options {
    // sizeof(rowmill_options).
    uint32_t size;
    // Requests wanted in flight on each worker; the dataplane may grant fewer. The default is 8.
    uint32_t credits;
    // The client's name in the dataplane's logs and status page, in UTF-8.
    const char *name;
    // Bytes for the ids of requests in flight that are too large for a frame (8 KiB); at most half of what the dataplane lets regions have is taken. The default is 16 MiB.
    uint64_t source_bytes;
    // Microseconds to wait for the dataplane's answer when connecting, binding, registering. The default is 10 s.
    uint64_t reply_limit_us;
    // How rowmill_wait() waits: a rowmill_waiting.
    uint32_t waiting;
    // 0.
    uint32_t reserved;
} rowmill_options;

// What a dataplane serves.
typedef struct rowmill_server {
    // sizeof(rowmill_server), set by the caller.
    uint32_t size;
    // Its workers, over which a request is split by bags.
    uint32_t workers;
    // Requests of this client that can be in flight on each worker.
    uint32_t credits;
    // 0.
    uint32_t reserved;
    // The newest generation that it has told of.
    uint64_t generation;
    // Bytes of the largest region that can be had now: what the dataplane grants this client, less what its regions have.
    uint64_t max_region;
    // The model's name in UTF-8, with a 0 behind it; cut where it is longer.
    char model[ROWMILL_NAME_BYTES];
} rowmill_server;

// A table of the model.
typedef struct rowmill_table {
    // sizeof(rowmill_table), set by the caller in the first one.
    uint32_t size;
    // Elements of a row.
    uint32_t dim;
    // Rows that ids can name.
    uint64_t rows;
    // Row format: 0 f32, 1 int8 with scale and bias as f32, 2 f16, 3 bf16, 4 int8 with scale and bias as f16, 5 int4.
    uint32_t format;
    // What ids name rows by: 0 their numbers, 1 any 64-bit number.
    uint32_t kind;
    // Its name in UTF-8, with a 0 behind it.
    char name[ROWMILL_NAME_BYTES];
} rowmill_table;

// A feature of a schema.
typedef struct rowmill_feature {
    // sizeof(rowmill_feature).
    uint32_t size;
    // How its bags are pooled: a rowmill_pooling.
    uint32_t pooling;
    // The type of its vectors' elements: a rowmill_output.
    uint32_t output;
    // Most ids of a request, where it is not pooled; else 0.
    uint32_t max_ids;
    // The caller's name for it, for messages; in UTF-8, at most 128 bytes.
    const char *name;
    // The table that its ids are looked up in.
    const char *table;
    // Bytes from the target's start to the vector of bag 0, or of the first id where it is not pooled.
    uint64_t offset;
    // Bytes from one vector to the next. Where it is 0 in all features, the vectors of a bag lie side by side in one row,
    // in the schema's order.
    uint64_t stride;
} rowmill_feature;

// Where a feature's vectors lie in answers.
typedef struct rowmill_layout {
    // sizeof(rowmill_layout), set by the caller.
    uint32_t size;
    // Elements of a vector.
    uint32_t dim;
    // Bytes of an element.
    uint32_t element_bytes;
    // 0.
    uint32_t reserved;
    // Bytes from the target's start to the first vector.
    uint64_t offset;
    // Bytes from one vector to the next.
    uint64_t stride;
} rowmill_layout;

// Choices for memory of the caller's. What is 0 has its default.
typedef struct rowmill_region_options {
    // sizeof(rowmill_region_options).
    uint32_t size;
    // ROWMILL_NO_COPIES or 0.
    uint32_t flags;
} rowmill_region_options;

// A region as it is.
typedef struct rowmill_region_info {
    // sizeof(rowmill_region_info), set by the caller.
    uint32_t size;
    // How answers come there: a rowmill_way.
    uint32_t way;
    // 1 where the memory is the caller's, 0 where rowmill_region_create() has made it.
    uint32_t callers;
    // 0.
    uint32_t reserved;
    // Where it begins.
    void *memory;
    // Its size.
    uint64_t bytes;
} rowmill_region_info;

// The ids of a feature, or of all features of a tensor, divided into bags. The arrays need no alignment.
typedef struct rowmill_jagged {
    // sizeof(rowmill_jagged).
    uint32_t size;
    // Bits of an id: 32 or 64. Ids are signed or not. Negative ones are refused by dense tables. For a hashed table, whose ids are
    // any 64-bit numbers, an id of 32 bits stands for the number with 32 zero bits before it.
    uint32_t id_bits;
    // Bits of a length or offset: 32 or 64; they are signed.
    uint32_t division_bits;
    // 0.
    uint32_t reserved;
    // The ids, one bag after another. NULL where there are none.
    const void *ids;
    // How many ids.
    uint64_t n_ids;
    // The length of each bag; NULL where there are offsets.
    const void *lengths;
    // Where each bag begins, and where the last one ends; NULL where there are lengths.
    const void *offsets;
    // How many lengths (one for each bag), or how many offsets (one more).
    uint64_t n_divisions;
    // A weight for each id, where the pooling is weighted; else NULL.
    const float *weights;
} rowmill_jagged;

// The ids of a request.
typedef struct rowmill_batch {
    // sizeof(rowmill_batch).
    uint32_t size;
    // Bags of each feature, at least 1.
    uint32_t bags;
    // How the parts lie in memory: a rowmill_batch_layout.
    uint32_t layout;
    // How many parts: one for each feature of the schema; 1 of a tensor.
    uint32_t n_parts;
    // The parts.
    const struct rowmill_jagged *parts;
    // Of a tensor: which column each feature of the schema takes, counted from 0; NULL where it is the one with its own
    // number.
    const uint32_t *columns;
    // How many numbers there are in `columns`: the schema's features, or 0.
    uint32_t n_columns;
    // 0.
    uint32_t reserved;
} rowmill_batch;

// Where an answer is placed.
typedef struct rowmill_target {
    // sizeof(rowmill_target).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // The region.
    struct rowmill_region *region;
    // Bytes from its start; a multiple of the largest element's bytes.
    uint64_t offset;
} rowmill_target;

// Choices for a request. What is 0 has its default.
typedef struct rowmill_request {
    // sizeof(rowmill_request).
    uint32_t size;
    // ROWMILL_PARTIALS or 0.
    uint32_t flags;
    // The generation wanted; 0 for the newest.
    uint64_t generation;
    // Microseconds for which anybody will want the answer, from the dataplane's receipt on; 0 for no limit.
    uint64_t deadline_us;
    // Microseconds for which rowmill_submit() waits for a slot, and for room for ids, where requests in flight have all of them; 0
    // to be told ROWMILL_AGAIN at once. Not for streams, where it has to be 0.
    uint64_t wait_us;
} rowmill_request;

// Names a request until its answer is taken; unique in the process, never 0.
typedef uint64_t rowmill_ticket;

// The end of a request.
typedef struct rowmill_answer {
    // sizeof(rowmill_answer), set by the caller.
    uint32_t size;
    // ROWMILL_OK where all vectors are in place; else why not, a rowmill_status. Some may have been placed.
    int32_t status;
    // Which request.
    rowmill_ticket ticket;
    // The generation of the rows.
    uint64_t generation;
    // Nanoseconds from the dataplane's receipt to its end of the work.
    uint64_t service_ns;
    // The feature that the status is about, counted from 0; UINT32_MAX where it is about none.
    uint32_t feature;
    // The bag or id of that feature that the status is about, counted from 0; UINT32_MAX where it is about none.
    uint32_t position;
} rowmill_answer;

// Choices for a GPU. What is 0 or NULL has its default.
typedef struct rowmill_gpu_options {
    // sizeof(rowmill_gpu_options).
    uint32_t size;
    // The GPU's number, as CUDA counts.
    int32_t ordinal;
    // ROWMILL_NO_STAGING or 0.
    uint32_t flags;
    // Most answers on their way. The default is 16.
    uint32_t requests;
    // The CUDA driver's library, in UTF-8. The default is what the environment variable ROWMILL_CUDA_LIBRARY names, or else
    // "libcuda.so.1".
    const char *library;
    // Bytes of pinned memory for answers on their way. The default is 64 MiB.
    uint64_t staging_bytes;
    // Microseconds after which a stream goes on without an answer. The default is 10 s.
    uint64_t limit_us;
} rowmill_gpu_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, as ROWMILL_VERSION.
uint32_t rowmill_version(void);

// What was wrong with this thread's last call that failed, and what to do about it: a sentence in UTF-8, "" where none
// has. It is valid until the thread's next call of a function of this library.
const char *rowmill_error_text(void);

// The name of a status, as "ROWMILL_BUSY"; it is valid for ever.
const char *rowmill_status_name(int status);

// Connects to the dataplane at `url`: "shm:/path/to/NAME.sock" or "rdma://HOST:PORT". `options` may be NULL.
// End the connection with rowmill_close().
int rowmill_connect(const char *url, const struct rowmill_options *options, struct rowmill_client **client);

// Ends a connection. Other threads may be in calls with it: those that wait are told ROWMILL_CLOSED. Later calls with it are refused
// with ROWMILL_CLOSED, too. Its regions stay mapped until they are freed; where requests were in flight the dataplane may write to
// them until it has noticed. NULL is taken, and nothing done.
int rowmill_close(struct rowmill_client *client);

// Tells what the dataplane serves, and how much of it this client may use.
int rowmill_describe(const struct rowmill_client *client, struct rowmill_server *server);

// Lists the model's tables: fills the first `room` of them, and tells in `count` how many there are. With a `room` of 0
// `tables` may be NULL.
int rowmill_tables(const struct rowmill_client *client, struct rowmill_table *tables, size_t room, size_t *count);

// Binds a schema: the features of requests, each from a table, and where their vectors lie in answers. `max_batch` is the
// most bags that a request will have. A connection can have 16 schemas; they end with it. Free the handle with
// rowmill_schema_free().
int rowmill_bind(const struct rowmill_client *client,
                 const struct rowmill_feature *features,
                 size_t n_features,
                 uint32_t max_batch,
                 struct rowmill_schema **schema);

// Tells where the vectors of feature number `feature` lie in answers.
int rowmill_schema_layout(const struct rowmill_schema *schema, size_t feature, struct rowmill_layout *layout);

// Tells how many bytes an answer of `bags` bags takes.
int rowmill_answer_bytes(const struct rowmill_schema *schema, uint32_t bags, uint64_t *bytes);

// Frees a schema's handle. Requests in flight go on. NULL is taken, and nothing done.
int rowmill_schema_free(struct rowmill_schema *schema);

// Makes memory that answers are placed in without a copy, at every port, and tells where it begins (a multiple of 4,096). All of
// it is 0 at first. Free it with rowmill_region_free(); it stays readable until then, also when its client is closed.
//
// rowmill_region_register() takes memory of the caller's instead.
int rowmill_region_create(const struct rowmill_client *client,
                          uint64_t bytes,
                          struct rowmill_region **region,
                          void **memory);

// Registers memory of the caller's for answers. It begins at a multiple of 4, can be written to, and has to stay mapped and so until
// the region is freed with rowmill_region_free(). What it holds stays as it is, but for the vectors of answers. Read-only memory and
// addresses where nothing is mapped are refused, as far as the kernel tells; so is memory that overlaps another region of this client.
//
// Over RDMA the dataplane's NIC writes there. Over shared memory a dataplane can't reach it, so that answers come to a region of the
// library's of the same size, and are copied by rowmill_wait() and rowmill_poll(): rowmill_region_describe() tells, and
// ROWMILL_NO_COPIES makes that an error (ROWMILL_INVALID). Both take one of the client's 16 regions, and of rowmill_server.max_region.
// `options` may be NULL.
int rowmill_region_register(const struct rowmill_client *client,
                            void *memory,
                            uint64_t bytes,
                            const struct rowmill_region_options *options,
                            struct rowmill_region **region);

// Tells where a region lies, how large it is, and how answers come there.
int rowmill_region_describe(const struct rowmill_region *region, struct rowmill_region_info *info);

// Frees a region, and its memory where the library has made it; memory of the caller's is the caller's alone from then on. Refused with
// ROWMILL_INVALID while a request is in flight that is to be answered there. NULL is taken, and nothing done.
int rowmill_region_free(struct rowmill_region *region);

// Sends a request. The answer is placed at `target`, which is the dataplane's until the answer was taken by rowmill_wait() or
// rowmill_poll(): until then what lies there is undefined. The batch with its arrays is the caller's again when the
// call returns. `request` may be NULL. ROWMILL_AGAIN: take answers first; with a `wait_us` also other threads can take them, and it
// comes when the time is over, or when only this thread's taking answers would help.
int rowmill_submit(const struct rowmill_client *client,
                   const struct rowmill_schema *schema,
                   const struct rowmill_batch *batch,
                   const struct rowmill_target *target,
                   const struct rowmill_request *request,
                   rowmill_ticket *ticket);

// Says that the rows of a batch may be wanted soon: those that are not in memory are fetched, as far as the dataplane has room for that. It
// returns at once, takes a slot until the dataplane has taken the ids, and has no answer: what the dataplane refuses is not told. The
// batch with its arrays is the caller's again when the call returns. Of `request`, which may be NULL, the deadline counts alone; the
// rest has to be 0. ROWMILL_AGAIN: all slots are in use; take answers first, or do without.
int rowmill_prefetch(const struct rowmill_client *client,
                     const struct rowmill_schema *schema,
                     const struct rowmill_batch *batch,
                     const struct rowmill_request *request);

// Takes an answer that has come, if there is one: `got` is then 1, and else 0. What became of the request is the answer's
// status, about which rowmill_error_text() has a sentence where it is not ROWMILL_OK; what is returned tells whether there could be
// looked for one.
int rowmill_poll(const struct rowmill_client *client,
                 struct rowmill_answer *answer,
                 int *got);

// Waits for the answer of a request, at most for so many microseconds: 0 to look only, below 0 for as long as it takes. Returns
// the answer's status. ROWMILL_TIMEOUT: no answer was taken, and the request is still in flight. One thread at a time may
// wait for a request.
int rowmill_wait(const struct rowmill_client *client,
                 rowmill_ticket ticket,
                 int64_t timeout_us,
                 struct rowmill_answer *answer);

// Gives an eventfd that can be read when an answer has come: add it to an event loop (poll, epoll, select) for reading, and
// when it is ready call rowmill_poll() until it gives no answer. It is the client's: neither read nor close it. It is the same
// at each call, and closed by rowmill_close(), so take it out of the loop before. From the first call on a thread of the
// library's own looks for answers while no other thread does; it sleeps while there is nothing to do.
int rowmill_notify_fd(const struct rowmill_client *client,
                      int *fd);

// Asks for the early end of a request, which another thread may be waiting for. Its answer still comes: ROWMILL_CANCELLED, or
// whatever else it had become by then; it has to be taken.
int rowmill_cancel(const struct rowmill_client *client,
                   rowmill_ticket ticket);

// Opens a GPU as a place for answers of this client, and finds out how they come there: a NIC writes them, or they are copied from
// pinned memory (staging); rowmill_gpu_report() tells. It takes a region of the client's 16, pinned memory and a thread: open it once.
// `options` may be NULL. ROWMILL_DEVICE: there is no driver or no such GPU, or staging was ruled out and there is nothing else.
// Close it with rowmill_gpu_close(), before its CUDA context is gone.
int rowmill_gpu_open(const struct rowmill_client *client,
                     const struct rowmill_gpu_options *options,
                     struct rowmill_gpu **gpu);

// Closes a GPU. Streams that wait for answers go on without them; what is being copied is waited for. NULL is taken, and nothing done.
int rowmill_gpu_close(struct rowmill_gpu *gpu);

// Tells how answers come to the GPU's memory: the GPU and the driver's library, then what was tried, in order, and what came of
// it, in UTF-8, a line each. Writes as many of its bytes as have room, and a 0 behind them where `room` is not 0; tells in
// `bytes`, which may be NULL, how many the whole text has with its 0. With a `room` of 0 `report` may be NULL.
int rowmill_gpu_report(const struct rowmill_gpu *gpu,
                       char *report,
                       size_t room,
                       size_t *bytes);

// As rowmill_gpu_report(), of memory that was registered with rowmill_gpu_register() at this address: what was tried for it, and
// what came of it. ROWMILL_INVALID: none was registered there.
int rowmill_gpu_region_report(const struct rowmill_gpu *gpu,
                              const void *device_memory,
                              char *report,
                              size_t room,
                              size_t *bytes);

// Tells how many answers were copied from pinned memory although a NIC could have written them, since their streams had work before
// that may use the memory.
int rowmill_gpu_staged_instead(const struct rowmill_gpu *gpu,
                               uint64_t *count);

// Registers memory of the GPU for answers, so that a NIC can write to it where there is one that can: answers to requests whose memory
// lies in it come that way, and to other memory by copies. What it holds stays as it is. Memory for NICs is best taken once, in
// large pieces at multiples of 64 KiB. It has to stay allocated until rowmill_gpu_unregister() or rowmill_gpu_close().
int rowmill_gpu_register(const struct rowmill_gpu *gpu,
                         void *device_memory,
                         uint64_t bytes);

// Gives memory up that was registered at this address. ROWMILL_INVALID: a request is in flight that is answered there; it stays
// registered until the GPU is closed then.
int rowmill_gpu_unregister(const struct rowmill_gpu *gpu,
                           void *device_memory);

// Sends a request of the GPU's client whose answer is to lie in the GPU's memory, for a stream: between what the stream has to do before
// and what it is given to do after. Returns when that is queued; there is no ticket, and nothing to wait for.
//
// `device_memory` is a CUdeviceptr, or what cudaMalloc() gave, of at least rowmill_answer_bytes() `bytes`; it has to stay allocated
// until the stream has come to the answer. `stream` is a CUstream or cudaStream_t of this GPU, which is believed; NULL is the legacy
// default stream. `request` may be NULL.
//
// A stream goes on also where there is no answer: the request was refused, its time is over, the dataplane is gone. There are
// NaNs in its place then, and the next call of this or of rowmill_gpu_synchronize() for that stream, or of rowmill_gpu_check(), returns
// ROWMILL_DEVICE; the request of that call is not sent. CUDA's own calls that wait for a stream tell nothing of it.
//
// ROWMILL_AGAIN: too many answers are on their way; or a NIC is to write the answer, staging was ruled out, and the stream has work
// before that may use the memory.
int rowmill_submit_on_stream(const struct rowmill_gpu *gpu,
                             const struct rowmill_schema *schema,
                             const struct rowmill_batch *batch,
                             void *device_memory,
                             uint64_t bytes,
                             void *stream,
                             const struct rowmill_request *request);

// Asks whether any stream has gone on without its answer since that was told last: ROWMILL_DEVICE then, and rowmill_error_text() has
// the reason of the earliest one. Does not wait.
int rowmill_gpu_check(const struct rowmill_gpu *gpu);

// Waits until a stream has done all that it has to do, and asks whether it has its answers: ROWMILL_DEVICE where not. Another thread's
// rowmill_gpu_close() ends the wait.
int rowmill_gpu_synchronize(const struct rowmill_gpu *gpu,
                            void *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ROWMILL_H */
