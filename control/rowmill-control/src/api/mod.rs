//! What is asked for over HTTP, and what is answered.
//!
//! Paths, methods, bodies and statuses are described in `control/openapi.json`, which is made from this code ([`description`]); a test asks a
//! running server for each of them.

mod access;
mod bodies;
mod dataplanes;
mod deltas;
mod generations;
mod operators;
mod refusal;
mod settings;

use std::future;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use rowmill_link::CONTROL_HEADER;
use rowmill_state::State;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::deciding::Unkept;
use crate::planning::Planning;

pub(crate) use deltas::Deltas;
use refusal::Refusal;

/// What whoever runs the control plane should know.
#[derive(Clone, Debug)]
pub(crate) struct Warnings {
    /// What is open to whom, each a sentence.
    pub(crate) open: Arc<[String]>,
    /// The state's file: damaged ones that were found in its place lie beside it.
    pub(crate) state: Arc<Path>,
    /// Why it can't be kept at present, if so.
    pub(crate) unkept: Arc<Unkept>,
}

impl Warnings {
    /// Each a sentence.
    fn told(&self) -> Vec<String> {
        let aside = State::set_aside(&self.state);
        let lost = aside.iter().map(|path| {
            let changed = path.metadata().map_or(0, |of| of.ctime());
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed.max(0) as u64);
            format!(
                "the state was damaged and put to {} {}, and a new one was begun: settings of tables, wishes for generations and what dataplanes were told before \
                 are lost with it; make them again (`rowmill policy set`, `rowmill generation load`), and then move that file elsewhere, which ends this warning",
                path.display(),
                ago(changed.elapsed().unwrap_or_default())
            )
        });
        let unkept = self.unkept.why();
        let open = self.open.iter().cloned();
        open.chain(lost).chain(unkept).collect()
    }
}

/// How long ago something was.
fn ago(passed: Duration) -> String {
    let s = passed.as_secs();
    match s {
        ..120 => format!("{s} s ago"),
        120..7_200 => format!("{} min ago", s / 60),
        7_200..172_800 => format!("{} h ago", s / 3_600),
        _ => format!("{} days ago", s / 86_400),
    }
}

/// The interface as a whole.
#[derive(OpenApi)]
#[openapi(info(
    title = "rowmill-control",
    description = "The control plane of rowmill: what dataplanes tell it, and what operators ask of it.\n\nEvery answer says whose it is in the header `rowmill-control`: the `control` of its policies. Every refusal is an object whose `error` is a sentence."
))]
struct Interface;

fn described() -> OpenApiRouter<Planning> {
    let dataplanes = OpenApiRouter::new()
        .routes(routes!(dataplanes::report))
        .routes(routes!(dataplanes::samples))
        .routes(routes!(dataplanes::policy))
        .routes(routes!(deltas::piece))
        .route_layer(middleware::from_fn(access::dataplanes));
    let operators = OpenApiRouter::new()
        .routes(routes!(operators::status))
        .routes(routes!(operators::dataplanes))
        .routes(routes!(operators::tables))
        .routes(routes!(operators::table))
        .routes(routes!(operators::row))
        .routes(routes!(settings::set, settings::unset))
        .routes(routes!(settings::settings))
        .routes(routes!(generations::generations))
        .routes(routes!(generations::wish))
        .routes(routes!(deltas::list, deltas::give))
        .route_layer(middleware::from_fn(access::operators));
    OpenApiRouter::with_openapi(Interface::openapi())
        .merge(dataplanes)
        .merge(operators)
}

/// The interface's description, in OpenAPI's form.
pub fn description() -> String {
    let mut interface = described().to_openapi();
    access::describe(&mut interface);
    let mut text = interface
        .to_pretty_json()
        .expect("it can be written to memory");
    text.push('\n');
    text
}

/// All that is answered, to visitors that the requests' extensions tell of. `warnings`: what whoever runs this should know.
pub(crate) fn router(planning: Planning, deltas: Deltas, warnings: Warnings) -> Router {
    let (router, _) = described().split_for_parts();
    let control = HeaderValue::from_str(&planning.control).expect("drawn as hexadecimal digits");
    router
        .fallback(async || {
            Refusal::new(
                StatusCode::NOT_FOUND,
                "there is nothing here: control/openapi.json says what there is",
            )
        })
        .method_not_allowed_fallback(async || {
            Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this is not to be had so: control/openapi.json says how it is",
            )
        })
        .layer(middleware::from_fn(no_browsers))
        .layer(middleware::from_fn(in_json))
        .layer(middleware::map_response(move |response| {
            future::ready(named(response, control.clone()))
        }))
        .layer(Extension(warnings))
        .layer(Extension(deltas))
        .with_state(planning)
}

/// Whose an answer is stands in it.
fn named(mut response: Response, control: HeaderValue) -> Response {
    response.headers_mut().insert(CONTROL_HEADER, control);
    response
}

/// What axum itself refuses, such as names that are no UTF-8, is said as everything else is.
async fn in_json(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_json = |kind: &HeaderValue| kind == "application/json";
    if status.as_u16() < 400 || response.headers().get(CONTENT_TYPE).is_some_and(is_json) {
        return response;
    }
    let why = to_bytes(response.into_body(), 1 << 10).await;
    let why = why.unwrap_or_default();
    Refusal::new(status, String::from_utf8_lossy(&why)).into_response()
}

/// Pages of other sites can't make a visitor's browser ask something here.
async fn no_browsers(request: Request, next: Next) -> Response {
    if request.headers().contains_key(ORIGIN) {
        return Refusal::new(
            StatusCode::FORBIDDEN,
            "requests of web pages are not answered",
        )
        .into_response();
    }
    next.run(request).await
}
