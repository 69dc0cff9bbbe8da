//! What operators want of tables.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use rowmill_admission::{Event, Settings, SettingsView};

use super::bodies::{Json, read_json};
use super::refusal::{Refusal, Told};
use crate::planning::Planning;

/// Longest settings.
const SETTINGS_MAX: usize = 4 << 10;

/// Settings of all tables that have some, also of tables that no dataplane has. There are 16384 at most.
#[utoipa::path(get, path = "/v1/settings", responses((status = 200, body = Vec<SettingsView>), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn settings(
    State(planning): State<Planning>,
) -> Result<Json<Vec<SettingsView>>, Refusal> {
    Ok(Json(
        planning.look(|planner, _| planner.all_settings()).await?,
    ))
}

/// Bounds a table's share, or has some of its rows pinned. It may be a table that nobody caches yet, of which `warnings` tell then.
#[utoipa::path(
    put, path = "/v1/tables/{model}/{table}/settings",
    params(("model" = String, Path, description = "The table's model"), ("table" = String, Path, description = "Its name")),
    request_body = Settings,
    responses(
        (status = 200, body = SettingsView, description = "It is kept, and followed from now on; `warnings` say what of it has no effect as things are"),
        (status = 400, body = Told, description = "They can't be read"),
        (status = 413, body = Told, description = "They are too long"),
        (status = 408, body = Told, description = "The body did not come"),
        (status = 422, body = Told, description = "They can't be, or 16384 tables have some already"),
        (status = 500, body = Told, description = "The state can't be written"),
        (status = 503, body = Told, description = "There is too much to do"),
    )
)]
pub(super) async fn set(
    State(planning): State<Planning>,
    Path((model, table)): Path<(String, String)>,
    body: Body,
) -> Result<Json<SettingsView>, Refusal> {
    let settings: Settings = read_json(body, SETTINGS_MAX).await?;
    let event = Event::Settings {
        model: model.clone(),
        table: table.clone(),
        settings: Some(settings.clone()),
    };
    planning.tell(event).await?;
    let look = move |planner: &rowmill_admission::Planner, _| {
        planner.settings_view(&model, &table, &settings)
    };
    Ok(Json(planning.look(look).await?))
}

/// Leaves a table's share to the control plane.
#[utoipa::path(
    delete, path = "/v1/tables/{model}/{table}/settings",
    params(("model" = String, Path, description = "The table's model"), ("table" = String, Path, description = "Its name")),
    responses((status = 204, description = "There are none now"), (status = 500, body = Told, description = "The state can't be written"), (status = 503, body = Told, description = "There is too much to do"))
)]
pub(super) async fn unset(
    State(planning): State<Planning>,
    Path((model, table)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    planning
        .tell(Event::Settings {
            model,
            table,
            settings: None,
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
