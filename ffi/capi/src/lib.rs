//! The C interface: what `rowmill.h` declares and `librowmill.so` exports.
//!
//! Each function checks what it was given, calls the hub of `rowmill_client`, and returns a status; `guard.rs` keeps panics
//! on this side. The header is made of this file, of `gpu.rs` and of `abi.rs` by cbindgen (`deploy/test-c.sh` compares), so that the comments
//! here are for readers of C; what all functions rely on stands at the header's top (`cbindgen.toml`), so they have no
//! section on safety of their own.
#![allow(clippy::missing_safety_doc, unreachable_pub)]

mod abi;
mod client;
mod copies;
mod error;
mod gpu;
mod guard;
mod handles;
mod input;
mod memory;
mod region;
mod requests;
mod schema;

#[cfg(test)]
mod tests;

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::sync::Arc;

use ::rowmill_client::{MAX_FEATURES, RequestOptions};

pub use abi::*;
use client::{Client, Submission};
pub use gpu::*;
use guard::guard;
use handles::{find, remove};
use input::{Out, place, read, read_all, text, unused};
use region::Region;
use schema::Schema;

/// The library's version, as ROWMILL_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn rowmill_version() -> u32 {
    ROWMILL_VERSION
}

/// What was wrong with this thread's last call that failed, and what to do about it: a sentence in UTF-8, "" where none
/// has. It is valid until the thread's next call of a function of this library.
#[unsafe(no_mangle)]
pub extern "C" fn rowmill_error_text() -> *const c_char {
    guard::text()
}

/// The name of a status, as "ROWMILL_BUSY"; it is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn rowmill_status_name(status: c_int) -> *const c_char {
    error::name(status).as_ptr()
}

/// Connects to the dataplane at `url`: "shm:/path/to/NAME.sock" or "rdma://HOST:PORT". `options` may be NULL.
/// End the connection with rowmill_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_connect(
    url: *const c_char,
    options: *const rowmill_options,
    client: *mut *mut rowmill_client,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules.
        let out = unsafe { place(client, "client") }?;
        out.write(ptr::null_mut());
        // SAFETY: the header's rules.
        let url = unsafe { text(url, "url") }?;
        let options = match options.is_null() {
            true => None,
            // SAFETY: the header's rules.
            false => Some(unsafe { read(options, "options") }?),
        };
        // SAFETY: the header's rules.
        let made = unsafe { Client::connect(url, options.as_ref()) }?;
        out.write(handles::add(Arc::new(made))?);
        Ok(())
    })
}

/// Ends a connection. Other threads may be in calls with it: those that wait are told ROWMILL_CLOSED. Later calls with it are refused
/// with ROWMILL_CLOSED, too. Its regions stay mapped until they are freed; where requests were in flight the dataplane may write to
/// them until it has noticed. NULL is taken, and nothing done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_close(client: *mut rowmill_client) -> c_int {
    guard(|| {
        if !client.is_null() {
            remove::<Client, _>(client)?.hub.close();
        }
        Ok(())
    })
}

/// Tells what the dataplane serves, and how much of it this client may use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_describe(
    client: *const rowmill_client,
    server: *mut rowmill_server,
) -> c_int {
    guard(|| {
        let client = find::<Client, _>(client)?;
        // SAFETY: the header's rules.
        let out = unsafe { Out::new(server, "server") }?;
        let welcome = client.hub.welcome();
        out.fill(
            0,
            &rowmill_server {
                size: 0,
                workers: welcome.split.lanes.into(),
                credits: welcome.credits.into(),
                reserved: 0,
                generation: client.hub.generation()?,
                max_region: client.hub.region_room()?,
                model: input::name(&welcome.model),
            },
        );
        Ok(())
    })
}

/// Lists the model's tables: fills the first `room` of them, and tells in `count` how many there are. With a `room` of 0
/// `tables` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_tables(
    client: *const rowmill_client,
    tables: *mut rowmill_table,
    room: usize,
    count: *mut usize,
) -> c_int {
    guard(|| {
        let client = find::<Client, _>(client)?;
        // SAFETY: the header's rules.
        let count = unsafe { place(count, "count") }?;
        let out = match room {
            0 => None,
            // SAFETY: the header's rules.
            _ => Some(unsafe { Out::new(tables, "tables") }?),
        };
        let all = client.hub.tables()?;
        count.write(all.len());
        for (at, table) in all.iter().take(room).enumerate() {
            let entry = rowmill_table {
                size: 0,
                dim: table.dim,
                rows: table.rows,
                format: table.format.into(),
                kind: table.kind.into(),
                name: input::name(&table.name),
            };
            out.iter().for_each(|out| out.fill(at, &entry));
        }
        Ok(())
    })
}

/// Binds a schema: the features of requests, each from a table, and where their vectors lie in answers. `max_batch` is the
/// most bags that a request will have. A connection can have 16 schemas; they end with it. Free the handle with
/// rowmill_schema_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_bind(
    client: *const rowmill_client,
    features: *const rowmill_feature,
    n_features: usize,
    max_batch: u32,
    schema: *mut *mut rowmill_schema,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules.
        let out = unsafe { place(schema, "schema") }?;
        out.write(ptr::null_mut());
        let client = find::<Client, _>(client)?;
        if n_features > MAX_FEATURES {
            return Err(error::Error::invalid(format!(
                "n_features is {n_features}; a schema has at most {}: use several",
                MAX_FEATURES
            )));
        }
        // SAFETY: the header's rules.
        let bound = unsafe {
            let features = read_all(features, n_features, "features")?;
            schema::bind(&client.hub, &features, max_batch)
        }?;
        out.write(handles::add(Arc::new(bound))?);
        Ok(())
    })
}

/// Tells where the vectors of feature number `feature` lie in answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_schema_layout(
    schema: *const rowmill_schema,
    feature: usize,
    layout: *mut rowmill_layout,
) -> c_int {
    guard(|| {
        let schema = find::<Schema, _>(schema)?;
        // SAFETY: the header's rules.
        let out = unsafe { Out::new(layout, "layout") }?;
        let feature = schema.feature(feature)?;
        let bound = &schema.bound;
        out.fill(
            0,
            &rowmill_layout {
                size: 0,
                dim: bound.dim(feature) as u32,
                element_bytes: bound.output(feature).bytes() as u32,
                reserved: 0,
                offset: bound.schema().features[feature].offset,
                stride: bound.schema().features[feature].stride,
            },
        );
        Ok(())
    })
}

/// Tells how many bytes an answer of `bags` bags takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_answer_bytes(
    schema: *const rowmill_schema,
    bags: u32,
    bytes: *mut u64,
) -> c_int {
    guard(|| {
        let schema = find::<Schema, _>(schema)?;
        // SAFETY: the header's rules.
        let out = unsafe { place(bytes, "bytes") }?;
        let bytes = schema.answer_bytes(bags).ok_or_else(|| {
            let most = schema.bound.schema().max_batch;
            error::Error::invalid(format!(
                "{bags} bags are more than the schema's max_batch of {most}; bind it with a larger one"
            ))
        })?;
        out.write(bytes);
        Ok(())
    })
}

/// Frees a schema's handle. Requests in flight go on. NULL is taken, and nothing done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_schema_free(schema: *mut rowmill_schema) -> c_int {
    guard(|| {
        if !schema.is_null() {
            remove::<Schema, _>(schema)?;
        }
        Ok(())
    })
}

/// Makes memory that answers are placed in without a copy, at every port, and tells where it begins (a multiple of 4,096). All of
/// it is 0 at first. Free it with rowmill_region_free(); it stays readable until then, also when its client is closed.
///
/// rowmill_region_register() takes memory of the caller's instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_region_create(
    client: *const rowmill_client,
    bytes: u64,
    region: *mut *mut rowmill_region,
    memory: *mut *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules, here and below.
        let out = unsafe { place(region, "region") }?;
        out.write(ptr::null_mut());
        // SAFETY: see above.
        let start = unsafe { place(memory, "memory") }?;
        start.write(ptr::null_mut());
        let client = find::<Client, _>(client)?;
        let made = Region::create(&client, bytes)?;
        let begins = made.info().memory;
        out.write(handles::add(Arc::new(made))?);
        start.write(begins);
        Ok(())
    })
}

/// Registers memory of the caller's for answers. It begins at a multiple of 4, can be written to, and has to stay mapped and so until
/// the region is freed with rowmill_region_free(). What it holds stays as it is, but for the vectors of answers. Read-only memory and
/// addresses where nothing is mapped are refused, as far as the kernel tells; so is memory that overlaps another region of this client.
///
/// Over RDMA the dataplane's NIC writes there. Over shared memory a dataplane can't reach it, so that answers come to a region of the
/// library's of the same size, and are copied by rowmill_wait() and rowmill_poll(): rowmill_region_describe() tells, and
/// ROWMILL_NO_COPIES makes that an error (ROWMILL_INVALID). Both take one of the client's 16 regions, and of rowmill_server.max_region.
/// `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_region_register(
    client: *const rowmill_client,
    memory: *mut c_void,
    bytes: u64,
    options: *const rowmill_region_options,
    region: *mut *mut rowmill_region,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules, here and below.
        let out = unsafe { place(region, "region") }?;
        out.write(ptr::null_mut());
        let client = find::<Client, _>(client)?;
        let flags = match options.is_null() {
            true => 0,
            // SAFETY: see above.
            false => unsafe { read(options, "options") }?.flags,
        };
        unused(flags & !ROWMILL_NO_COPIES, "options.flags")?;
        let memory = region::callers(memory.cast(), bytes)?;
        // SAFETY: see above.
        let made = unsafe { Region::register(&client, memory, flags & ROWMILL_NO_COPIES == 0) }?;
        out.write(handles::add(Arc::new(made))?);
        Ok(())
    })
}

/// Tells where a region lies, how large it is, and how answers come there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_region_describe(
    region: *const rowmill_region,
    info: *mut rowmill_region_info,
) -> c_int {
    guard(|| {
        let region = find::<Region, _>(region)?;
        // SAFETY: the header's rules.
        let out = unsafe { Out::new(info, "info") }?;
        out.fill(0, &region.info());
        Ok(())
    })
}

/// Frees a region, and its memory where the library has made it; memory of the caller's is the caller's alone from then on. Refused with
/// ROWMILL_INVALID while a request is in flight that is to be answered there. NULL is taken, and nothing done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_region_free(region: *mut rowmill_region) -> c_int {
    guard(|| {
        if !region.is_null() {
            find::<Region, _>(region)?.unregister()?;
            remove::<Region, _>(region)?;
        }
        Ok(())
    })
}

/// Sends a request. The answer is placed at `target`, which is the dataplane's until the answer was taken by rowmill_wait() or
/// rowmill_poll(): until then what lies there is undefined. The batch with its arrays is the caller's again when the
/// call returns. `request` may be NULL. ROWMILL_AGAIN: take answers first; with a `wait_us` also other threads can take them, and it
/// comes when the time is over, or when only this thread's taking answers would help.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_submit(
    client: *const rowmill_client,
    schema: *const rowmill_schema,
    batch: *const rowmill_batch,
    target: *const rowmill_target,
    request: *const rowmill_request,
    ticket: *mut rowmill_ticket,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules, here and below.
        let out = unsafe { place(ticket, "ticket") }?;
        out.write(0);
        let client = find::<Client, _>(client)?;
        let schema = find::<Schema, _>(schema)?;
        // SAFETY: see above.
        let (batch, target) = unsafe { (read(batch, "batch")?, read(target, "target")?) };
        unused(target.reserved, "target.reserved")?;
        let region = find::<Region, _>(target.region)?;
        let (options, wait) = match request.is_null() {
            true => Default::default(),
            // SAFETY: see above.
            false => requests::options(&unsafe { read(request, "request") }?)?,
        };
        // SAFETY: see above. The arrays are not used when the call has returned.
        let arrays = unsafe { requests::Arrays::of(&batch) }?;
        out.write(client.submit(&Submission {
            schema,
            arrays: &arrays,
            region,
            offset: target.offset,
            options,
            wait,
        })?);
        Ok(())
    })
}

/// Says that the rows of a batch may be wanted soon: those that are not in memory are fetched, as far as the dataplane has room for that. It
/// returns at once, takes a slot until the dataplane has taken the ids, and has no answer: what the dataplane refuses is not told. The
/// batch with its arrays is the caller's again when the call returns. Of `request`, which may be NULL, the deadline counts alone; the
/// rest has to be 0. ROWMILL_AGAIN: all slots are in use; take answers first, or do without.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_prefetch(
    client: *const rowmill_client,
    schema: *const rowmill_schema,
    batch: *const rowmill_batch,
    request: *const rowmill_request,
) -> c_int {
    guard(|| {
        let client = find::<Client, _>(client)?;
        let schema = find::<Schema, _>(schema)?;
        // SAFETY: the header's rules, here and below.
        let batch = unsafe { read(batch, "batch") }?;
        let options = match request.is_null() {
            true => RequestOptions::default(),
            // SAFETY: see above.
            false => requests::of_prefetch(&unsafe { read(request, "request") }?)?,
        };
        // SAFETY: see above. The arrays are not used when the call has returned.
        let arrays = unsafe { requests::Arrays::of(&batch) }?;
        let sent = client.hub.prefetch(&schema.bound, &arrays.view(), &options);
        Ok(sent?)
    })
}

/// Takes an answer that has come, if there is one: `got` is then 1, and else 0. What became of the request is the answer's
/// status, about which rowmill_error_text() has a sentence where it is not ROWMILL_OK; what is returned tells whether there could be
/// looked for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_poll(
    client: *const rowmill_client,
    answer: *mut rowmill_answer,
    got: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules, here and below.
        let got = unsafe { place(got, "got") }?;
        got.write(0);
        // SAFETY: see above.
        let out = unsafe { Out::new(answer, "answer") }?;
        let client = find::<Client, _>(client)?;
        if let Some(taken) = client.poll()? {
            let (answer, outcome) = requests::answer(&taken);
            out.fill(0, &answer);
            got.write(1);
            outcome.unwrap_or_else(|error| guard::keep(error.text));
        }
        Ok(())
    })
}

/// Waits for the answer of a request, at most for so many microseconds: 0 to look only, below 0 for as long as it takes. Returns
/// the answer's status. ROWMILL_TIMEOUT: no answer was taken, and the request is still in flight. One thread at a time may
/// wait for a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_wait(
    client: *const rowmill_client,
    ticket: rowmill_ticket,
    timeout_us: i64,
    answer: *mut rowmill_answer,
) -> c_int {
    guard(|| {
        // SAFETY: the header's rules.
        let out = unsafe { Out::new(answer, "answer") }?;
        let client = find::<Client, _>(client)?;
        let taken = client.wait(ticket, requests::limit(timeout_us))?;
        let (answer, outcome) = requests::answer(&taken);
        out.fill(0, &answer);
        outcome
    })
}

/// Gives an eventfd that can be read when an answer has come: add it to an event loop (poll, epoll, select) for reading, and
/// when it is ready call rowmill_poll() until it gives no answer. It is the client's: neither read nor close it. It is the same
/// at each call, and closed by rowmill_close(), so take it out of the loop before. From the first call on a thread of the
/// library's own looks for answers while no other thread does; it sleeps while there is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_notify_fd(client: *const rowmill_client, fd: *mut c_int) -> c_int {
    guard(|| {
        // SAFETY: the header's rules.
        let out = unsafe { place(fd, "fd") }?;
        out.write(-1);
        out.write(find::<Client, _>(client)?.notify_fd()?);
        Ok(())
    })
}

/// Asks for the early end of a request, which another thread may be waiting for. Its answer still comes: ROWMILL_CANCELLED, or
/// whatever else it had become by then; it has to be taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rowmill_cancel(
    client: *const rowmill_client,
    ticket: rowmill_ticket,
) -> c_int {
    guard(|| find::<Client, _>(client)?.cancel(ticket))
}
