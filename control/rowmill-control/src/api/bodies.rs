//! Bodies that come and go, with bounds in bytes and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;

/// A body that takes longer to come is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer in JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let json = serde_json::to_string(&self.0)
            .expect("answers have keys of text and can be written to memory");
        ([(header::CONTENT_TYPE, "application/json")], json).into_response()
    }
}

/// Bytes of a body too long that are still read, and thrown away: who sends one sees the refusal only once it has sent all, since a
/// connection that is closed before is broken for it. Bodies longer than this are cut off.
const SWALLOWED_MAX: usize = 64 << 20;

/// The same of who is not let in: a report of the largest dataplane.
const REFUSED_MAX: usize = 5 << 20;

/// A body of so many bytes at most.
pub(super) async fn read(body: Body, most: usize) -> Result<Vec<u8>, Refusal> {
    let read = tokio::time::timeout(PATIENCE, take(body, most));
    read.await.unwrap_or_else(|_| {
        let error = format!("the body did not come within {} s", PATIENCE.as_secs());
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, error))
    })
}

async fn take(mut body: Body, most: usize) -> Result<Vec<u8>, Refusal> {
    let (mut bytes, mut came) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let broken = |error| {
            let error = format!("the body broke off: {error}");
            Refusal::new(StatusCode::BAD_REQUEST, error)
        };
        // What is no data ends a body in chunks, and says nothing here.
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        came += data.len();
        if came <= most {
            bytes.extend_from_slice(&data);
        } else if came > SWALLOWED_MAX {
            break;
        }
    }
    if came > most {
        let error = format!("the body is longer than {most} bytes");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error));
    }
    Ok(bytes)
}

/// Throws away a body that nobody wants, as far as it would be read if somebody did.
pub(super) async fn swallow(mut body: Body) {
    let mut came = 0;
    let take = async {
        while let Some(Ok(frame)) = body.frame().await {
            came += frame.data_ref().map_or(0, |data| data.len());
            if came > REFUSED_MAX {
                break;
            }
        }
    };
    // Who is slow is refused, too.
    let _late = tokio::time::timeout(PATIENCE, take).await;
}

/// A body of JSON, an object: read from an array, a value's parts would be told by nothing but their order.
pub(super) async fn read_json<T: DeserializeOwned>(body: Body, most: usize) -> Result<T, Refusal> {
    let bytes = read(body, most).await?;
    let refused = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        return Err(refused(
            "the body is an array: write an object, {\"name\": value}".into(),
        ));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| refused(format!("the body can't be read: {error}")))
}
