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

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::http::header::ORIGIN;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::planning::Planning;

pub(crate) use deltas::Deltas;
use refusal::Refusal;

/// What whoever runs the control plane should know, each a sentence.
#[derive(Clone, Debug)]
pub(crate) struct Warnings(pub(crate) std::sync::Arc<[String]>);

/// The interface as a whole.
#[derive(OpenApi)]
#[openapi(info(
    title = "rowmill-control",
    description = "The control plane of rowmill: what dataplanes tell it, and what operators ask of it.\n\nEvery refusal is an object whose `error` is a sentence."
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
        .routes(routes!(operators::set, operators::unset))
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
        .layer(Extension(warnings))
        .layer(Extension(deltas))
        .with_state(planning)
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
