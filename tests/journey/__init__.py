"""The whole main job, and a tiny run of it for the tests of train and jobs."""
