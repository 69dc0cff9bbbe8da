//! Generations of models, for operators.

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use rowmill_admission::{GenerationWish, ModelView};

use super::Deltas;
use super::bodies::{Json, read_json};
use super::refusal::{Refusal, Told};
use crate::planning::Planning;

/// Longest wish.
const WISH_MAX: usize = 1 << 10;

/// Models, and the generations of each that are wanted and held.
#[utoipa::path(get, path = "/v1/generations", responses((status = 200, body = Vec<ModelView>), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn generations(
    State(planning): State<Planning>,
    Extension(Deltas(log)): Extension<Deltas>,
) -> Result<Json<Vec<ModelView>>, Refusal> {
    let look = |planner: &rowmill_admission::Planner, now_ns: u64| planner.models(now_ns);
    let mut models = planning.look(look).await?;
    if let Some(log) = log {
        for model in &mut models {
            for of in &mut model.dataplanes {
                of.diverged = log.diverged_of(&of.dataplane, &model.model);
            }
        }
    }
    Ok(Json(models))
}

/// Has a generation of a model loaded, served or given up by all of its dataplanes. What comes of it is told by `GET /v1/generations`.
#[utoipa::path(
    post, path = "/v1/generations/{model}",
    params(("model" = String, Path, description = "The model's name")),
    request_body = GenerationWish,
    responses(
        (status = 204, description = "It is kept, and followed from now on"),
        (status = 400, body = Told, description = "It can't be read"),
        (status = 408, body = Told, description = "The body did not come"),
        (status = 409, body = Told, description = "It can't be done now"),
        (status = 413, body = Told, description = "It is too long"),
        (status = 422, body = Told, description = "It can't be"),
        (status = 500, body = Told, description = "The state can't be written"),
        (status = 503, body = Told, description = "There is too much to do"),
    )
)]
pub(super) async fn wish(
    State(planning): State<Planning>,
    Path(model): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let wish: GenerationWish = read_json(body, WISH_MAX).await?;
    planning.wish(model, wish).await?;
    Ok(StatusCode::NO_CONTENT)
}
