"""The paper's 41 rows: trained, evaluated, packed for travel, and put into tables from their records."""
