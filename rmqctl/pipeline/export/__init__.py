"""Messages of many stores as files by topic and day: plan, tasks on any pool, staging, manifest."""
