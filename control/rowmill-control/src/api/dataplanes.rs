//! What dataplanes tell, and are told.

use axum::body::Body;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rowmill_admission::Event;
use rowmill_link::{BODY_MAX, HOLD, Order, Policy, Report, Samples};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Deltas;
use super::bodies::{Json, read, read_json};
use super::refusal::{Refusal, Told};
use crate::deltas::Holds;
use crate::planning::Planning;

/// Longest report: 4,096 tables of 1 KiB each.
const REPORT_MAX: usize = 4 << 20;

/// Takes what a dataplane tells of itself.
#[utoipa::path(
    post, path = "/v1/dataplanes/{name}/report",
    params(("name" = String, Path, description = "The dataplane's name")),
    request_body = Report,
    responses(
        (status = 204, description = "It was taken"),
        (status = 400, body = Told, description = "It is no report"),
        (status = 409, body = Told, description = "Another dataplane reports under this name"),
        (status = 408, body = Told, description = "The body did not come"),
        (status = 413, body = Told, description = "It is too long"),
        (status = 422, body = Told, description = "It says what can't be"),
        (status = 503, body = Told, description = "There are dataplanes enough, or too much is to do"),
    )
)]
pub(super) async fn report(
    State(planning): State<Planning>,
    Extension(Deltas(log)): Extension<Deltas>,
    Path(dataplane): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let report: Report = read_json(body, REPORT_MAX).await?;
    let told = log.map(|log| (log, dataplane.clone(), Holds::from(&report)));
    planning.tell(Event::Report { dataplane, report }).await?;
    if let Some((log, dataplane, holds)) = told {
        log.reported(&dataplane, holds);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Takes lookups that a dataplane has sampled.
#[utoipa::path(
    post, path = "/v1/dataplanes/{name}/samples",
    params(("name" = String, Path, description = "The dataplane's name")),
    request_body(content_type = "application/x-rowmill-samples", description = "As dataplane/link/src/samples.rs says"),
    responses(
        (status = 204, description = "They were taken"),
        (status = 400, body = Told, description = "They can't be read"),
        (status = 409, body = Told, description = "The dataplane has not reported since it started"),
        (status = 408, body = Told, description = "The body did not come"),
        (status = 413, body = Told, description = "They are too long"),
        (status = 503, body = Told, description = "There is too much to do"),
    )
)]
pub(super) async fn samples(
    State(planning): State<Planning>,
    Path(dataplane): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let bytes = read(body, BODY_MAX).await?;
    let samples = Samples::decode(&bytes);
    let samples = samples.map_err(|error| {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("the samples can't be read: {error}"),
        )
    })?;
    planning.tell(Event::Samples { dataplane, samples }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which policy a dataplane has.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Has {
    /// The order of the policy that it has, `EPOCH.VERSION`: then a later one is waited for, 25 s at most. Without it the present one is
    /// answered at once.
    after: Option<String>,
    /// The dataplane's instance.
    #[serde(rename = "instance")]
    _instance: Option<String>,
}

/// What a dataplane is to do.
#[utoipa::path(
    get, path = "/v1/dataplanes/{name}/policy",
    params(("name" = String, Path, description = "The dataplane's name"), Has),
    responses(
        (status = 200, body = Policy, description = "A policy that is later than the one it has"),
        (status = 204, description = "There is none"),
        (status = 400, body = Told, description = "What it has is said wrongly"),
    )
)]
pub(super) async fn policy(
    State(planning): State<Planning>,
    Path(dataplane): Path<String>,
    has: Result<Query<Has>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Refusal> {
    let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let Query(has) = has.map_err(|error| wrong(error.to_string()))?;
    let after = has.after.as_deref().map(str::parse::<Order>).transpose();
    let after = after.map_err(|error| wrong(format!("after: {error}")))?;
    let newer = || {
        planning
            .policy(&dataplane)
            .filter(|policy| after.is_none_or(|after| policy.order > after))
    };
    let mut changes = planning.changes();
    let wait = async {
        loop {
            changes.mark_unchanged();
            if let Some(policy) = newer() {
                return Some(policy);
            }
            // The planning thread has ended, and the process does.
            if after.is_none() || changes.changed().await.is_err() {
                return None;
            }
        }
    };
    // There is none in time, or none at all.
    let policy = tokio::time::timeout(HOLD, wait).await.unwrap_or(None);
    Ok(match policy {
        Some(policy) => Json(Policy::clone(&policy)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
