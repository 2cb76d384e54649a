"""Tests of rmqctl.case."""
