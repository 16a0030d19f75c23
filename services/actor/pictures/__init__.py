"""Pictures of evaluation episodes: drawing, recording, handing over. Imported only to record."""
