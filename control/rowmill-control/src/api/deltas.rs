//! Deltas: what operators give, and dataplanes fetch.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use utoipa::IntoParams;

use super::bodies::{Json, swallow};
use super::refusal::{Refusal, Told};
use crate::deltas::{Kept, Log, NotTaken, SENT, Taken};
use crate::planning::Planning;

/// The log, where deltas are kept.
#[derive(Clone, Debug)]
pub(crate) struct Deltas(pub(crate) Option<Arc<Log>>);

/// While a body comes nobody else can give one. So in each such time at least [`LEAST`] bytes of it come, or its end,
const PATIENCE: Duration = Duration::from_secs(10);
/// which a link of 0.2 Mbit/s carries;
const LEAST: usize = 256 << 10;
/// and all of it comes at this rate at least, in bytes a second, after a minute for its beginning.
const SLOWEST: u64 = 4 << 20;
/// Pieces of a body, of some 400 KiB at most each, that wait to be written.
const PIECES: usize = 4;

impl Deltas {
    fn log(&self) -> Result<&Arc<Log>, Refusal> {
        self.0.as_ref().ok_or_else(|| {
            Refusal::new(
                StatusCode::CONFLICT,
                "no deltas are kept here: set deltas.directory in the control plane's configuration",
            )
        })
    }
}

impl From<NotTaken> for Refusal {
    fn from(error: NotTaken) -> Refusal {
        let status = match &error {
            NotTaken::Unread(_) | NotTaken::Io { .. } | NotTaken::Damaged(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            NotTaken::Bad(_) => StatusCode::UNPROCESSABLE_ENTITY,
            NotTaken::Conflict(_) | NotTaken::Ahead(_) => StatusCode::CONFLICT,
            NotTaken::Busy => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal::new(status, error.to_string())
    }
}

/// Deltas that are kept, by model and generation.
#[utoipa::path(get, path = "/v1/deltas", responses(
    (status = 200, body = Vec<Kept>), (status = 409, body = Told, description = "No deltas are kept here")
))]
pub(super) async fn list(Extension(deltas): Extension<Deltas>) -> Result<Json<Vec<Kept>>, Refusal> {
    Ok(Json(deltas.log()?.list()))
}

/// What comes of a body, a piece after the other.
enum Come {
    Piece(Bytes),
    /// It is whole.
    End,
}

/// Keeps a delta for the dataplanes of its model, which apply those of a generation in the order of their numbers, each once. It is on the
/// disk when this is answered. The same one may be sent again.
#[utoipa::path(
    post, path = "/v1/deltas",
    request_body(content_type = "application/octet-stream", description = "A file as dataplane/table/FORMAT.md says and `rowmill delta make` writes"),
    responses(
        (status = 200, body = Taken, description = "It is kept"),
        (status = 400, body = Told, description = "It broke off"),
        (status = 408, body = Told, description = "The body did not come, or too slowly"),
        (status = 409, body = Told, description = "It does not come next, another one has its number, it was made for a generation that no dataplane holds in place of the one that is held under its number, or no deltas are kept here"),
        (status = 413, body = Told, description = "It is larger than deltas.max_bytes"),
        (status = 422, body = Told, description = "It is damaged, or no delta"),
        (status = 500, body = Told, description = "It can't be written"),
        (status = 503, body = Told, description = "Another one is being taken"),
    )
)]
pub(super) async fn give(
    Extension(deltas): Extension<Deltas>,
    mut body: Body,
) -> Result<Json<Taken>, Refusal> {
    let log = match deltas.log() {
        Ok(log) => Arc::clone(log),
        Err(refusal) => {
            swallow(body).await;
            return Err(refusal);
        }
    };
    let most = log.most;
    let (sender, mut come) = mpsc::channel(PIECES);
    let writing = spawn_blocking(move || -> Result<Option<Taken>, NotTaken> {
        let alone = log.try_alone()?;
        let mut write = || {
            let mut draft = log.begin(&alone)?;
            loop {
                match come.blocking_recv() {
                    Some(Come::Piece(piece)) => {
                        let written = draft.write_all(&piece);
                        written.map_err(|source| log.unkept(source))?;
                    }
                    Some(Come::End) => return log.take(&draft, SENT.as_ref(), &alone).map(Some),
                    None => return Ok(None),
                }
            }
        };
        let outcome = write();
        log.drop_draft(&alone);
        outcome
    });
    let mut came = 0;
    let read = async {
        let mut pace = Pace::default();
        while let Some(frame) = pace.next(&mut body).await? {
            came += frame.len() as u64;
            if came > most {
                let error =
                    format!("the delta is larger than {most} bytes, which is deltas.max_bytes");
                return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error));
            }
            if sender.send(Come::Piece(frame)).await.is_err() {
                // Why it is not written any more is told there.
                return Ok(false);
            }
        }
        let _told_there = sender.send(Come::End).await;
        Ok(true)
    };
    let whole = Duration::from_secs(60 + most / SLOWEST);
    let read = tokio::time::timeout(whole, read).await;
    let read = read.unwrap_or_else(|_| {
        let error = format!("the body did not come within {} s", whole.as_secs());
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, error))
    });
    drop(sender);
    // Who is refused amid a body may not look for why before it is sent. (Where more is left than is taken here, its connection is reset.)
    if !matches!(read, Ok(true)) {
        swallow(body).await;
    }
    let written = writing
        .await
        .map_err(|_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it was not written"))?;
    read?;
    match written? {
        Some(taken) => Ok(Json(taken)),
        None => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "the body ended before it was whole",
        )),
    }
}

/// How fast a body comes. What it waits for here is not its own time.
#[derive(Default)]
struct Pace {
    /// How long it was waited for since it was last looked at how much came, and that.
    waited: Duration,
    came: usize,
}

impl Pace {
    /// The next bytes of a body; none at its end.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, Refusal> {
        loop {
            let asked = Instant::now();
            let left = PATIENCE.saturating_sub(self.waited);
            let frame = tokio::time::timeout(left, body.frame()).await;
            self.waited += asked.elapsed();
            let Ok(frame) = frame else {
                self.look()?;
                continue;
            };
            let Some(frame) = frame else { return Ok(None) };
            let broken = |error| {
                let error = format!("the body broke off: {error}");
                Refusal::new(StatusCode::BAD_REQUEST, error)
            };
            // What is no data ends a body in chunks, and says nothing here.
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                self.came += data.len();
                return Ok(Some(data));
            }
        }
    }

    /// Whether enough came in the time that is over.
    fn look(&mut self) -> Result<(), Refusal> {
        if self.came < LEAST {
            let error = format!(
                "only {} bytes of the body came within {} s, while others wait to give theirs: send at least {LEAST} in that time",
                self.came,
                PATIENCE.as_secs()
            );
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, error));
        }
        *self = Pace::default();
        Ok(())
    }
}

/// Which piece is wanted, and of whom.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// The first byte.
    #[serde(default)]
    at: u64,
    /// The control plane that the dataplane follows: another one does not answer.
    control: Option<String>,
    /// What tells the deltas before it, as the dataplane has applied them, from any others: `delta_chain` of dataplane/table/src/delta.rs.
    chain: Option<u32>,
}

/// A piece of a delta: the next 1 MiB, or what there is until its end.
#[utoipa::path(
    get, path = "/v1/dataplanes/{name}/deltas/{model}/{generation}/{sequence}",
    params(
        ("name" = String, Path, description = "The dataplane's name"), ("model" = String, Path, description = "The model"),
        ("generation" = u64, Path, description = "The generation's number"), ("sequence" = u64, Path, description = "The delta's sequence number"),
        Wanted,
    ),
    responses(
        (status = 200, content_type = "application/octet-stream", description = "The bytes"),
        (status = 204, description = "There is no such delta yet"),
        (status = 400, body = Told, description = "It is asked for wrongly"),
        (status = 409, body = Told, description = "The dataplane follows another control plane, or has applied other deltas before it, or more than are kept"),
        (status = 500, body = Told, description = "It can't be read, or is damaged"),
    )
)]
pub(super) async fn piece(
    State(planning): State<Planning>,
    Extension(deltas): Extension<Deltas>,
    Path((dataplane, model, generation, sequence)): Path<(String, String, String, String)>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refusal> {
    let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let number = |what: &str, text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| {
            wrong(format!(
                "`{text}` is no number of a {what}: write .../deltas/MODEL/GENERATION/SEQUENCE, the last two as numbers"
            ))
        })
    };
    let generation = number("generation", &generation)?;
    let sequence = number("delta", &sequence)?;
    let Query(wanted) = wanted.map_err(|error| wrong(error.to_string()))?;
    if wanted
        .control
        .is_some_and(|other| other != planning.control)
    {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            format!(
                "this is control plane {}, and the dataplane follows another one",
                planning.control
            ),
        ));
    }
    let Some(log) = deltas.0 else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let piece = spawn_blocking(move || {
        let place = (&*model, generation, sequence);
        log.piece(&dataplane, place, wanted.chain, wanted.at)
    });
    let piece = piece
        .await
        .map_err(|_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it was not read"))?;
    Ok(match piece? {
        Some(piece) => {
            ([(header::CONTENT_TYPE, "application/octet-stream")], piece).into_response()
        }
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
